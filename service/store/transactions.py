"""What each kind of database does for the store: run a function as one transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from typing import Protocol, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from service.store.port import DatabaseAwayError

T = TypeVar("T")

BUSY_TIMEOUT_S = 10.0
"""How long a transaction waits for a connection, and a writer for another process's; those take milliseconds."""


class News(StrEnum):
    """What a commit tells other processes: that users wish for something, or that the reconciler saw something."""

    WISHES = "concertina_wishes"
    OBSERVED = "concertina_observed"


class Transactions(Protocol):
    """Runs ``work`` off the event loop's thread or interleaved with it; it must neither block nor touch the loop.

    Both commit what ``work`` did when it returns, roll back when it raises, and raise DatabaseAwayError when
    the database cannot be used now. A caller who is cancelled does not learn whether ``work`` was committed.
    """

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Give ``work`` one consistent view of the database."""
        ...

    async def write(self, work: Callable[[Connection], T], news: News | None = None) -> T:
        """Durable when this returns; those who ``watch`` are told the news where the database can."""
        ...

    async def watch(self, wanted: Collection[News], wake: Callable[[], None]) -> None:
        """Call ``wake`` when another process commits such news, until cancelled; it may miss some, and wake for none.

        Returns at once where the database tells nobody.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


_AWAY_STATES = ("08", "25006", "28", "3D", "40", "53", "55P03", "57", "58")
"""SQLSTATEs, or their beginnings, of a PostgreSQL that may well serve the same transaction a little later."""


@contextlib.contextmanager
def away_told() -> Iterator[None]:
    """What only says that the database cannot be used now: locked for too long, gone, its disk full."""
    try:
        yield
    except Exception as error:
        if not _is_away(error):
            raise
        raise DatabaseAwayError(f"the database does not answer: {_why(error)}") from error


def _why(error: Exception) -> str:
    if isinstance(error, DBAPIError):
        return str(error.orig)
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _is_away(error: Exception) -> bool:
    # OSError and TimeoutError come from PostgreSQL's driver as they are.
    if isinstance(error, OperationalError | InterfaceError | PoolTimeoutError | OSError | TimeoutError):
        return True
    state = getattr(error.orig if isinstance(error, DBAPIError) else error, "sqlstate", None)
    if state is None and isinstance(error, InternalError):
        # The driver's own word: it was told of its connection's end while it waited for nothing, and stands there.
        return True
    return isinstance(state, str) and state.startswith(_AWAY_STATES)
