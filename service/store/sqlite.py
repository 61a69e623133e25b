"""Transactions on SQLite: each is one hop to a thread that runs all of it on a synchronous connection."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.pool import ConnectionPoolEntry

from service.store.port import DatabaseAwayError
from service.store.transactions import BUSY_TIMEOUT_S, News, away_told

T = TypeVar("T")

NUM_READERS = 4
"""A long read (a job's whole history) holds one of these; the others go on."""

WAL_RETRY_S = 0.01


class SqliteTransactions:
    """Writers of this process take turns in one thread, so they never meet in SQLite's busy handler, which sleeps.

    Whoever is cancelled while its transaction waits for its thread leaves nothing behind; one that has begun
    runs to its end in the thread, so no connection is ever left inside a transaction.
    """

    def __init__(self, url: str) -> None:
        self._engine = create_engine(
            url, connect_args={"timeout": BUSY_TIMEOUT_S}, pool_size=NUM_READERS + 1, max_overflow=0
        )
        event.listen(self._engine, "connect", prepare_sqlite)
        event.listen(self._engine, "begin", _begin)
        self._writer = self._engine.execution_options(concertina_writes=True)
        self._open_lanes()

    async def read(self, work: Callable[[Connection], T]) -> T:
        """See ``Transactions``."""

        def transaction() -> T:
            with self._engine.connect() as conn:
                return work(conn)

        return await self._reading.run(transaction)

    async def write(self, work: Callable[[Connection], T], news: News | None = None) -> T:
        """See ``Transactions``; nobody is told, since all who use a file are on one machine and nudge each other."""

        def transaction() -> T:
            with self._writer.begin() as conn:
                return work(conn)

        return await self._writing.run(transaction)

    async def watch(self, wanted: Collection[News], wake: Callable[[], None]) -> None:
        """See ``Transactions``; returns at once."""

    async def close(self) -> None:
        """Let what has begun end, then close all connections; a later transaction would open them anew."""
        lanes = (self._writing, self._reading)
        self._open_lanes()

        def end() -> None:
            for lane in lanes:
                lane.end()
            self._engine.dispose()

        await asyncio.to_thread(end)

    def _open_lanes(self) -> None:
        self._writing, self._reading = _Lane(1, "store-writer"), _Lane(NUM_READERS, "store-reader")


class _Lane:
    """Threads that run transactions in the order in which they are asked.

    One that another process keeps out for its whole bound fails, and with it all who waited as long behind it.
    Who waits for anything else, a slow disk or a machine that sleeps, has its turn however late that is.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        # Starts its threads at its first work.
        self._executor = ThreadPoolExecutor(num_threads, name)
        self._is_kept_out = False

    async def run(self, transaction: Callable[[], T]) -> T:
        asked_s = time.monotonic()

        def turn() -> T:
            waited_s = time.monotonic() - asked_s
            if self._is_kept_out and waited_s > BUSY_TIMEOUT_S:
                raise DatabaseAwayError(f"the database was busy for {waited_s:.0f} s; try again")
            self._is_kept_out = False
            try:
                with away_told():
                    return transaction()
            except DatabaseAwayError:
                self._is_kept_out = True
                raise

        return await asyncio.get_running_loop().run_in_executor(self._executor, turn)

    def end(self) -> None:
        """Wait for what has been asked."""
        self._executor.shutdown()


def prepare_sqlite(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    """Settings of each new SQLite connection; durable, concurrent, with foreign keys."""
    # The driver must not begin transactions by itself: it would begin them without the lock.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout={int(BUSY_TIMEOUT_S * 1000)}",
        "synchronous=FULL",
        "foreign_keys=ON",
        "cache_size=-8000",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    _use_wal(cursor)
    cursor.close()


def _use_wal(cursor: DBAPICursor) -> None:
    """Change a new file to WAL. SQLite waits for nobody there, though another process may be doing the same."""
    deadline_s = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(WAL_RETRY_S)


def _begin(conn: Any) -> None:
    is_writer = conn.get_execution_options().get("concertina_writes", False)
    conn.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")
