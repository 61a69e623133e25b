"""Migrates a database from several processes at once and prints their exit codes: ``python -m ... URL NUMBER``.

They are forked from this one, which has imported everything and has no threads.
"""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.synchronize import Barrier

from service.migrations.upgrade import upgrade

LIMIT_S = 60.0


def upgrade_together(url: str, barrier: Barrier) -> None:
    """Once all processes are there."""
    barrier.wait(LIMIT_S)
    upgrade(url)


def main() -> None:
    url, number = sys.argv[1], int(sys.argv[2])
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(number)
    processes = [fork.Process(target=upgrade_together, args=(url, barrier), daemon=True) for _ in range(number)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT_S)
    print(*(process.exitcode for process in processes))


if __name__ == "__main__":
    main()
