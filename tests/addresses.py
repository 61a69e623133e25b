"""The addresses of this machine: Chromium gives up whatever connects (ERR_NETWORK_CHANGED) when one comes or goes.

Tests run in several processes. A browser is only open while no other of them gives this machine an address, or takes
one away.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tests.waiting import wait_for

LIMIT_S = 150.0
_LOCK = Path(tempfile.gettempdir()) / f"concertina-tests-{os.getuid()}-addresses.lock"


@contextmanager
def kept() -> Iterator[None]:
    """They stay as they are for the length of the block. Fails where somebody changes them for ``LIMIT_S`` seconds."""
    with _LOCK.open("w") as file:
        wait_for("the end of another test's change of addresses", lambda: _taken(file, fcntl.LOCK_SH), LIMIT_S)
        yield


@contextmanager
def changed() -> Iterator[None]:
    """The block may change them. Fails where another test's browser stays open for ``LIMIT_S`` seconds."""
    with _LOCK.open("w") as file:
        wait_for("the end of another test's browser", lambda: _taken(file, fcntl.LOCK_EX), LIMIT_S)
        yield


def _taken(file: TextIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
