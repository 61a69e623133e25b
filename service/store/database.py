"""The engine and its two kinds of transaction: reading, and writing under one change number."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import event, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from service.store.port import DatabaseAwayError, FencedOutError, StoreError
from service.store.schema import installation

BUSY_TIMEOUT_S = 10.0
"""How long a writer waits for another process's transaction; those take milliseconds."""


@dataclass(frozen=True, slots=True)
class Write:
    """A write transaction: ``change`` is its number, ``now_s`` the time that its rows carry."""

    conn: AsyncConnection
    change: int
    now_s: float


class Database:
    """Gives out transactions on one database.

    On SQLite a writer takes the lock at BEGIN, so that two of them never deadlock, and a commit is
    on disk when it returns (WAL, synchronous=FULL). All three kinds of transaction raise
    DatabaseAwayError when the database cannot be used now.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.time) -> None:
        self._engine = _engine(url)
        self._writer = self._engine.execution_options(concertina_writes=True)
        self._clock = clock
        # Writers of this process queue here in order, not in SQLite's busy handler, which sleeps.
        self._turn = asyncio.Lock()

    @property
    def now_s(self) -> float:
        return self._clock()

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """One consistent view of the database."""
        with _away_told():
            async with self._engine.connect() as conn:
                yield conn

    @contextlib.asynccontextmanager
    async def writing(self, fence: int | None = None) -> AsyncIterator[Write]:
        """A transaction that commits at the end of the block and is rolled back by an exception.

        With ``fence`` it belongs to the reconciler. Raises FencedOutError when that number has been
        superseded. The change number comes from a row that all writers update, so changes become
        visible in the order of their numbers on any database.
        """
        with _away_told():
            async with self._turn, self._writer.begin() as conn:
                yield Write(conn, await self._next_change(conn, fence), self._clock())

    @contextlib.asynccontextmanager
    async def writing_quietly(self) -> AsyncIterator[AsyncConnection]:
        """A write transaction of what no page shows: the lease, tokens, links."""
        with _away_told():
            async with self._turn, self._writer.begin() as conn:
                yield conn

    async def change(self) -> int:
        """The number of the last committed change."""
        async with self.reading() as conn:
            return int((await conn.execute(text("SELECT change FROM installation"))).scalar_one())

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()

    async def _next_change(self, conn: AsyncConnection, fence: int | None) -> int:
        statement = update(installation).values(change=installation.c.change + 1).returning(installation.c.change)
        if fence is not None:
            statement = statement.where(installation.c.fence == fence)
        change = (await conn.execute(statement)).scalar_one_or_none()
        if change is None and fence is None:
            raise StoreError("the database has no installation row; run the migrations")
        if change is None:
            raise FencedOutError(f"fencing number {fence} was superseded; this reconciler must stop")
        return int(change)


@contextlib.contextmanager
def _away_told() -> Iterator[None]:
    """What only says that the database cannot be used now: locked for too long, gone, its disk full."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeoutError) as error:
        raise DatabaseAwayError(f"the database does not answer: {error.__cause__ or error}") from error


def _engine(url: str) -> AsyncEngine:
    if make_url(url).get_backend_name() != "sqlite":
        return create_async_engine(url, pool_size=10, max_overflow=10, pool_pre_ping=True)
    engine = create_async_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S}, pool_size=5, max_overflow=5)
    event.listen(engine.sync_engine, "connect", prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def prepare_sqlite(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    """Settings of each new SQLite connection; durable, concurrent, with foreign keys."""
    # The driver must not begin transactions by itself: it would begin them without the lock.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout={int(BUSY_TIMEOUT_S * 1000)}",
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "cache_size=-8000",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(conn: Any) -> None:
    is_writer = conn.get_execution_options().get("concertina_writes", False)
    conn.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")
