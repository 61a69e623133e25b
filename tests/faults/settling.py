"""What tests under mixed load share at their end: everything comes to rest, and the oracle is asked."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TypeVar

from tests.faults.diary import read_diary, read_saves
from tests.faults.evidence import gather, told_of
from tests.faults.findings import Finding, assert_nothing_found, at_rest
from tests.faults.load import Load
from tests.faults.oracle import Case, judge
from tests.faults.processes import RECONCILER, Installation
from tests.waiting import LIMIT_S

T = TypeVar("T")


async def judged(load: Load, first: Installation, *others: Installation) -> None:
    """Let everything come to its end, and ask the oracle; ``others`` are replicas beside the first."""
    replicas = (first, *others)

    def tend() -> None:
        for replica in replicas:
            replica.tend()

    states = await load.settle(90, tend)
    assert set(states) <= {"SUCCEEDED", "CANCELLED"}, (states, *(replica.told() for replica in replicas))

    async def look() -> list[Finding]:
        case = Case(
            evidence=gather(first.settings, *(other.settings.home for other in others)),
            notes=read_diary(first.diary),
            saves=read_saves(first.diary),
            accepted=load.accepted,
            deleted=load.deleted,
            remains=await first.cluster.remains(),
        )
        return judge(case)

    assert_nothing_found(await at_rest(look, LIMIT_S), lambda about: told_of(gather(first.settings), about))
    assert load.wrong == []


def fence(installation: Installation) -> int:
    """The number of the latest lease."""
    return gather(installation.settings).fence


async def until(look: Callable[[], T | None], what: str) -> T:
    """Wait, while other tasks of this loop go on, until something is there or holds; gives what was seen then."""
    deadline_s = time.monotonic() + LIMIT_S
    while not (seen := look()):
        assert time.monotonic() < deadline_s, f"{what} did not come within {LIMIT_S:.0f} s"
        await asyncio.sleep(0.02)
    return seen


async def stopped_between_transactions(installation: Installation) -> ForkServerProcess:
    """The reconciler, stopped: within a transaction it would hold SQLite's lock, and nobody else could write.

    PostgreSQL ends the transaction of one that stands still.
    """
    file = installation.settings.database_file
    while True:
        process = installation.freeze(RECONCILER)
        if file is None or _is_writable(file):
            return process
        installation.thaw(process)
        await asyncio.sleep(0.01)


def _is_writable(file: Path) -> bool:
    connection = sqlite3.connect(file, timeout=0, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    else:
        return True
    finally:
        connection.close()
