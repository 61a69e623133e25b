"""The seconds that a thread's work took, without those for which it waited for a processor that others had."""

from __future__ import annotations

import time
from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class Stopwatch:
    """Runs from its making on, for the thread that makes it and asks it.

    Where the system does not tell what a thread waited for processors (Linux does), it is a plain clock.
    """

    def __init__(self) -> None:
        # What was waited for is read inside of what passed, at both ends, so that it is never the longer of the two.
        self._begun_s = time.perf_counter()
        self._waited_s = _waited_s()

    def seconds(self) -> float:
        """Since it was made."""
        waited_s = _waited_s() - self._waited_s
        return max(0.0, time.perf_counter() - self._begun_s - waited_s)


def in_words(seconds: float) -> str:
    """Three digits, in the unit that they need: ``12.4 ms``."""
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


def _waited_s() -> float:
    """Seconds in run queues so far: the second number, kernel documentation, scheduler/sched-stats."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
