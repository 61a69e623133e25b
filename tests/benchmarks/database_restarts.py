"""PostgreSQL restarted and cut every few seconds under mixed load: what is lost, and how soon all is well again.

    python -m tests.benchmarks.database_restarts --rounds 100 --output results.jsonl

On the whole control plane over a cluster in memory; ``tests/faults`` has a short run of the same. Ends with 1 where
anything was found, answered wrongly, or took longer than ``WANTED_S``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks.figures import append_result, circumstances, in_words, versions
from tests.faults.database_portion import run_portion
from tests.forking import import_before_forking
from tests.service.postgres import running_server

KIND = "database_restarts"
WANTED_S = 5.0


def main() -> int:
    """Spoil, count and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    import_before_forking("tests.faults.processes")
    with running_server() as postgres, tempfile.TemporaryDirectory(prefix="database-") as folder:
        done = asyncio.run(run_portion(Path(folder) / "home", postgres, rounds=options.rounds, seed=options.seed))
    figures = {"rounds": options.rounds, "seed": options.seed, **asdict(done), "versions": versions("asyncpg")}
    append_result(options.output, KIND, figures | circumstances())
    print(f"{options.rounds} rounds {dict(done.spoilt)}, {done.accepted} jobs accepted, answers {dict(done.answers)}")
    print(f"answered again after {in_words(done.api_s, 's')}; led again after {in_words(done.reconciler_s, 's')}")
    print(*done.findings, *done.wrong, f"{len(done.findings)} findings, {len(done.wrong)} wrong answers", sep="\n")
    is_slow = max((*done.api_s, *done.reconciler_s)) > WANTED_S
    return int(bool(done.findings or done.wrong or is_slow))


if __name__ == "__main__":
    sys.exit(main())
