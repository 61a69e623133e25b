"""A lock among the processes of one node, for what is made once a node and then shared."""

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
    """Hold the lock file ``path``; yields its descriptor.

    The lock belongs to the open file: it ends with the process, or with the last child that was
    given the descriptor. ``what`` says what is waited for, to ``report`` and in the error.

    Raises TimeoutError after ``timeout_s``.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _acquire(descriptor, what, timeout_s, report)
        yield descriptor
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, what: str, timeout_s: float, report: Callable[[str], None]) -> None:
    begin_s = time.monotonic()
    next_report_s = begin_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            now_s = time.monotonic()
        if now_s - begin_s >= timeout_s:
            raise TimeoutError(f"waited {timeout_s:g} s for another worker of this node: {what}")
        if now_s >= next_report_s:
            report(f"waiting for another worker of this node: {what}")
            next_report_s = now_s + _REPORT_EVERY_S
        time.sleep(_POLL_S)
