"""Transactions on PostgreSQL: the store's plain functions, run by SQLAlchemy over asyncpg in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Collection
from typing import TypeVar

import asyncpg
from sqlalchemy import AdaptedConnection, Connection, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from service.store.port import DatabaseAwayError
from service.store.transactions import BUSY_TIMEOUT_S, News, away_told

T = TypeVar("T")

NUM_CONNECTIONS = 10
CONNECT_TIMEOUT_S = 3.0
LISTEN_AGAIN_S = 1.0
LISTEN_PROBE_S = 30.0
TRANSACTION_TIMEOUT_S = 30.0
"""Of a transaction with all its waits: one that waits for a server that hangs ends, too."""
SILENCE_S = 4
"""After so long without an acknowledgement a link counts as cut, whatever is waited for."""
PROBE_S = 1


_LOCK_NOT_AVAILABLE = "55P03"
_END_SILENT_WRITERS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND usename = current_user"
    " AND application_name = current_setting('application_name')"
    " AND backend_xid IS NOT NULL AND state = 'active' AND wait_event_type = 'Client'"
    " AND query_start < clock_timestamp() - make_interval(secs => :silent_s)"
)
"""Between two messages of one command the server waits for its client without a bound of its own."""


class PostgresTransactions:
    """Writers of this process take turns, so that those who wait for another replica's hold one connection only.

    Whoever is cancelled has its transaction rolled back, unless its commit is on the way.
    """

    def __init__(self, url: str) -> None:
        self._engine = postgres_engine(url)
        self._listening = postgres_engine(url, is_pooled=False)
        self._reader = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._turn = asyncio.Lock()
        self._num_silences = 0

    async def read(self, work: Callable[[Connection], T]) -> T:
        """See ``Transactions``."""
        async with _bounded(), self._reader.connect() as conn:
            return await conn.run_sync(work)

    async def write(self, work: Callable[[Connection], T], news: News | None = None) -> T:
        """See ``Transactions``."""
        async with _bounded(), self._taking_turns(), self._ending_the_silent(), self._engine.begin() as conn:
            done = await conn.run_sync(work)
            if news is not None:
                await conn.exec_driver_sql(f"NOTIFY {news}")
            return done

    @contextlib.asynccontextmanager
    async def _ending_the_silent(self) -> AsyncIterator[None]:
        """Whoever waited for a lock in vain ends the writers whose process has stopped in the middle of a statement."""
        try:
            yield
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
                async with self._engine.connect() as conn:
                    await conn.execute(_END_SILENT_WRITERS, {"silent_s": BUSY_TIMEOUT_S / 2})
            raise

    @contextlib.asynccontextmanager
    async def _taking_turns(self) -> AsyncIterator[None]:
        """Whoever waits while another finds that nobody answers is told so too, and does not try in its turn."""
        known = self._num_silences
        async with self._turn:
            if self._num_silences != known:
                raise TimeoutError("it did not answer whoever was before")
            try:
                yield
            except (OSError, TimeoutError):
                self._num_silences += 1
                raise

    async def watch(self, wanted: Collection[News], wake: Callable[[], None]) -> None:
        """See ``Transactions``; listens on a connection of its own, and on another when that is lost."""
        while True:
            # SQLAlchemy wraps the driver's own error nowhere here: of a connection that has just been lost.
            with contextlib.suppress(DatabaseAwayError, asyncpg.InterfaceError), away_told():
                await self._listen(wanted, wake)
            await asyncio.sleep(LISTEN_AGAIN_S)

    async def _listen(self, wanted: Collection[News], wake: Callable[[], None]) -> None:
        has_ended = asyncio.Event()
        async with self._listening.connect() as conn:
            driver = (await conn.get_raw_connection()).driver_connection
            assert driver is not None
            driver.add_termination_listener(lambda _: has_ended.set())
            for news in wanted:
                await driver.add_listener(news, lambda *_: wake())
            wake()  # for what was committed while nobody listened
            while not has_ended.is_set():
                await _until(has_ended, LISTEN_PROBE_S)
                # A connection that the network has forgotten says nothing by itself.
                await conn.exec_driver_sql("SELECT 1")
                await conn.rollback()

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()


def postgres_engine(url: str, *, is_pooled: bool = True) -> AsyncEngine:
    """Connections that are looked at before they are used, so that a restarted database costs no request."""
    arguments = {
        "timeout": CONNECT_TIMEOUT_S,
        "command_timeout": TRANSACTION_TIMEOUT_S,
        "server_settings": {
            "application_name": "concertina",
            "lock_timeout": f"{BUSY_TIMEOUT_S:.0f}s",
            # A replica that was stopped in the middle must not hold the others up for ever.
            "idle_in_transaction_session_timeout": f"{BUSY_TIMEOUT_S:.0f}s",
        },
    }
    pooled = {
        "pool_size": NUM_CONNECTIONS,
        "max_overflow": 0,
        "pool_timeout": BUSY_TIMEOUT_S,
        "pool_pre_ping": True,
    }
    engine = create_async_engine(url, connect_args=arguments, **(pooled if is_pooled else {"poolclass": NullPool}))
    event.listen(engine.sync_engine, "connect", _end_at_silence)
    return engine


def _end_at_silence(connection: AdaptedConnection, _: object) -> None:
    """Let the kernel end a connection whose other side acknowledges nothing any more."""
    link = connection.driver_connection._transport.get_extra_info("socket")
    if link.family == socket.AF_UNIX:
        return
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP_OPTIONS.items():
        if hasattr(socket, name):  # not every system has them all
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


_TCP_OPTIONS = {
    "TCP_KEEPIDLE": PROBE_S,
    "TCP_KEEPINTVL": PROBE_S,
    "TCP_KEEPCNT": SILENCE_S // PROBE_S,
    "TCP_USER_TIMEOUT": SILENCE_S * 1000,
}


async def _until(event: asyncio.Event, limit_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()


@contextlib.asynccontextmanager
async def _bounded() -> AsyncIterator[None]:
    with away_told():
        async with asyncio.timeout(TRANSACTION_TIMEOUT_S):
            yield
