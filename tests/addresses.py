"""The addresses of this machine: Chromium gives up whatever connects (ERR_NETWORK_CHANGED) when one comes or goes.

Tests run in several processes. A browser is only open while no other of them gives this machine an address, or takes
one away.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from workers.node_lock import node_lock, share_lock

LIMIT_S = 150.0
"""Longer than any file of tests with a browser takes."""

_LOCK = Path(tempfile.gettempdir()) / f"concertina-tests-{os.getuid()}-addresses.lock"


@contextmanager
def kept() -> Iterator[None]:
    """They stay as they are for the length of the block. Raises TimeoutError after ``LIMIT_S`` seconds of changes."""
    descriptor = share_lock(_LOCK, "a test that changes addresses", LIMIT_S, print)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def changed() -> Iterator[None]:
    """The block may change them, after ``LIMIT_S`` seconds also while another test's browser is open.

    That test may fail then; but what was made here goes in any case.
    """
    with ExitStack() as stack:
        with suppress(TimeoutError):
            stack.enter_context(node_lock(_LOCK, "a test with a browser", LIMIT_S, print))
        yield
