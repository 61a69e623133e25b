"""One `serve` a home and a database file: a lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that serves a home now, and where it answers."""

    pid: int
    url: str


class AlreadyServedError(Exception):
    """Another process serves this home."""

    def __init__(self, home: Path, holder: Holder | None) -> None:
        who = f"process {holder.pid}, at {holder.url}" if holder else "another process"
        super().__init__(
            f"{home} is already served by {who}; use that one, end it by `concertina stop --home {home}`, "
            "or give --home another folder"
        )


class DatabaseServedError(Exception):
    """The service of another home uses this database file."""

    def __init__(self, file: Path) -> None:
        super().__init__(
            f"{file} is served from another home already; end that service, give --database another file, "
            "or move to PostgreSQL, which serves several replicas"
        )


@contextmanager
def database_lock(file: Path) -> Iterator[None]:
    """Held on a SQLite file by the one `serve` that uses it, whatever its home. Raises DatabaseServedError.

    On the file itself, which is made where there is none: SQLite's own locks are of another kind.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DatabaseServedError(file) from None
        yield
    finally:
        os.close(descriptor)


class ServeLock:
    """Held by the one process that serves a home; use as a context manager."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor: int | None = None

    def __enter__(self) -> ServeLock:
        """Raises AlreadyServedError while another process holds it."""
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise AlreadyServedError(self._file.parent.parent, _read(self._file)) from None
        self._descriptor = descriptor
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def announce(self, url: str) -> None:
        """Tell other processes who holds it and where it answers."""
        assert self._descriptor is not None, "announce only while the lock is held"
        text = json.dumps(asdict(Holder(os.getpid(), url)))
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)


def current_holder(file: Path) -> Holder | None:
    """Who holds the lock now; None when nobody does, whatever the file says."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(file) or Holder(0, "an address not announced yet")
    finally:
        os.close(descriptor)
    return None


def _read(file: Path) -> Holder | None:
    try:
        document = json.loads(file.read_text())
        return Holder(int(document["pid"]), str(document["url"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
