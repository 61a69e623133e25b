"""The addresses of this machine: Chromium gives up whatever connects (ERR_NETWORK_CHANGED) when one comes or goes.

Tests run in several processes. A browser is only open while no other of them gives this machine an address, or takes
one away.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tests.waiting import wait_for

LIMIT_S = 150.0
"""Longer than any file of tests with a browser takes."""

_LOCK = Path(tempfile.gettempdir()) / f"concertina-tests-{os.getuid()}-addresses.lock"


@contextmanager
def kept() -> Iterator[None]:
    """They stay as they are for the length of the block. Fails where somebody changes them for ``LIMIT_S`` seconds."""
    with _LOCK.open("w") as file:
        wait_for("the end of another test's change of addresses", lambda: _taken(file, fcntl.LOCK_SH), LIMIT_S)
        yield


@contextmanager
def changed() -> Iterator[None]:
    """The block may change them, after ``LIMIT_S`` seconds also while another test's browser is open.

    That test may fail then; but what was made here goes in any case.
    """
    deadline_s = time.monotonic() + LIMIT_S
    with _LOCK.open("w") as file:
        while not _taken(file, fcntl.LOCK_EX) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        yield


def _taken(file: TextIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
