"""What each kind of database does for the store: run a function as one transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from service.store.port import DatabaseAwayError

T = TypeVar("T")

BUSY_TIMEOUT_S = 10.0
"""How long a transaction waits for its turn, and a writer for another process's; those take milliseconds."""


class Transactions(Protocol):
    """Runs ``work`` off the event loop's thread or interleaved with it; it must neither block nor touch the loop.

    Both commit what ``work`` did when it returns, roll back when it raises, and raise DatabaseAwayError when
    the database cannot be used now. A caller who is cancelled does not learn whether ``work`` was committed.
    """

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Give ``work`` one consistent view of the database."""
        ...

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Durable when this returns."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


@contextlib.contextmanager
def away_told() -> Iterator[None]:
    """What only says that the database cannot be used now: locked for too long, gone, its disk full."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeoutError) as error:
        raise DatabaseAwayError(f"the database does not answer: {error.__cause__ or error}") from error
