"""Locks among the processes of one node, for what is made once a node and then shared.

A lock belongs to the open file: it ends with the process, however that ends, or with the last child that was given
the descriptor.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.1
_REPORT_EVERY_S = 15.0


@contextmanager
def node_lock(path: Path, what: str, timeout_s: float, report: Callable[[str], None]) -> Iterator[int]:
    """Hold the lock file ``path`` alone; yields its descriptor.

    ``what`` says what is waited for, to ``report`` and in the error. Raises TimeoutError after ``timeout_s``.
    """
    descriptor = _held(path, fcntl.LOCK_EX, what, timeout_s, report)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def share_lock(path: Path, what: str, timeout_s: float, report: Callable[[str], None]) -> int:
    """Hold the lock file together with others who share it, until the descriptor that this gives is closed.

    Otherwise as ``node_lock``.
    """
    return _held(path, fcntl.LOCK_SH, what, timeout_s, report)


def try_lock(path: Path) -> int | None:
    """Hold the lock file alone, if nobody holds it now: the descriptor, for the caller to close; else None."""
    descriptor = _opened(path)
    if _takes(descriptor, fcntl.LOCK_EX) and _is_at(descriptor, path):
        return descriptor
    os.close(descriptor)
    return None


def _held(path: Path, kind: int, what: str, timeout_s: float, report: Callable[[str], None]) -> int:
    while True:
        descriptor = _opened(path)
        try:
            _acquire(descriptor, kind, what, timeout_s, report)
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # it was removed before it was held, and others hold another one by now


def _opened(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _takes(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _acquire(descriptor: int, kind: int, what: str, timeout_s: float, report: Callable[[str], None]) -> None:
    begin_s = time.monotonic()
    next_report_s = begin_s
    while not _takes(descriptor, kind):
        now_s = time.monotonic()
        if now_s - begin_s >= timeout_s:
            raise TimeoutError(f"waited {timeout_s:g} s for another worker of this node: {what}")
        if now_s >= next_report_s:
            report(f"waiting for another worker of this node: {what}")
            next_report_s = now_s + _REPORT_EVERY_S
        time.sleep(_POLL_S)
