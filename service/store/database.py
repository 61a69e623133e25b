"""The three kinds of transaction: reading, writing under one change number, and writing quietly."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection, bindparam, inspect, make_url, select, update

from service.store.port import FencedOutError, StoreError
from service.store.schema import installation
from service.store.sqlite import SqliteTransactions
from service.store.transactions import News, Transactions

T = TypeVar("T")

_NEXT_CHANGE = update(installation).values(change=installation.c.change + 1).returning(installation.c.change)
_NEXT_FENCED_CHANGE = _NEXT_CHANGE.where(installation.c.fence == bindparam("led_by"))


@dataclass(frozen=True, slots=True)
class Write:
    """A write transaction: ``change`` is its number, ``now_s`` the time that its rows carry."""

    conn: Connection
    change: int
    now_s: float


class Database:
    """Runs plain functions on a synchronous connection, each as one transaction, awaited as one step.

    The functions see the database only through their argument and must not await, so the same ones serve
    every kind of database. Nothing is claimed by FOR UPDATE SKIP LOCKED: one leader decides, fenced by its number,
    and writers wait at the row of the change number, which none may pass over. All three kinds of transaction
    raise DatabaseAwayError when the database cannot be used now; a caller who is cancelled does not learn whether
    its write was committed.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.time) -> None:
        self._transactions = _transactions(url)
        self._clock = clock

    @property
    def now_s(self) -> float:
        return self._clock()

    async def read(self, work: Callable[[Connection], T]) -> T:
        """What ``work`` returns; it sees one consistent view of the database."""
        return await self._transactions.read(work)

    async def write(self, work: Callable[[Write], T], fence: int | None = None) -> T:
        """What ``work`` returns, once all it wrote is committed; an exception of it rolls back.

        With ``fence`` the write belongs to the reconciler. Raises FencedOutError when that number has been
        superseded. The change number comes from a row that all writers update, so changes become
        visible in the order of their numbers on any database.
        """

        def numbered(conn: Connection) -> T:
            return work(Write(conn, _next_change(conn, fence), self._clock()))

        return await self._transactions.write(numbered, News.WISHES if fence is None else News.OBSERVED)

    async def write_quietly(self, work: Callable[[Connection], T]) -> T:
        """As ``write``, of what no page shows: the lease, tokens, links."""
        return await self._transactions.write(work)

    async def watch(self, wanted: Collection[News], wake: Callable[[], None]) -> None:
        """Call ``wake`` when another process commits such news, until cancelled. Speed only: rows are truth.

        Returns at once where the database tells nobody, as SQLite.
        """
        await self._transactions.watch(wanted, wake)

    async def change(self) -> int:
        """The number of the last committed change."""
        return await self.read(last_change)

    async def has_tables(self) -> bool:
        """Whether ``service.migrations.upgrade`` has ever made them."""
        return await self.read(lambda conn: inspect(conn).has_table(installation.name))

    async def close(self) -> None:
        """Let what has begun end, and close all connections."""
        await self._transactions.close()


def _transactions(url: str) -> Transactions:
    if make_url(url).get_backend_name() == "sqlite":
        return SqliteTransactions(url)
    # Imported here: its driver is installed only where it is used.
    from service.store.postgres import PostgresTransactions

    return PostgresTransactions(url)


def superseded(fence: int) -> FencedOutError:
    """What the reconciler of a past fencing number is told."""
    return FencedOutError(f"fencing number {fence} was superseded; this reconciler must stop")


def last_change(conn: Connection) -> int:
    """The number of the last change that this transaction sees."""
    return int(conn.execute(select(installation.c.change)).scalar_one())


def _next_change(conn: Connection, fence: int | None) -> int:
    if fence is None:
        change = conn.execute(_NEXT_CHANGE).scalar_one_or_none()
        if change is None:
            raise StoreError("the database has no installation row; run the migrations")
    else:
        change = conn.execute(_NEXT_FENCED_CHANGE, {"led_by": fence}).scalar_one_or_none()
        if change is None:
            raise superseded(fence)
    return int(change)
