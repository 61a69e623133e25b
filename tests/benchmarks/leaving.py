"""Ends a measurement in order when it is told to, so that the clusters and services it started end with it."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def leave_in_order() -> None:
    """From now on SIGTERM unwinds the stack like an exception. Main thread only.

    Call it again after `ray.init`, which puts a handler in its place that ends the process at once.
    """
    signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
