"""How long the link was at work: seconds in which a collective was under way, however many at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Occupancy:
    """One world's; safe for threads, as gloo tells in its own that a collective has ended."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._num_under_way = 0
        self._since_s = 0.0
        self._busy_s = 0.0

    @property
    def busy_s(self) -> float:
        """Seconds so far."""
        with self._lock:
            return self._busy_s + (self._clock() - self._since_s if self._num_under_way > 0 else 0.0)

    def begin(self) -> None:
        """A collective begins."""
        with self._lock:
            if self._num_under_way == 0:
                self._since_s = self._clock()
            self._num_under_way += 1

    def end(self, _: object) -> None:
        """One has ended; what a future calls with itself."""
        with self._lock:
            self._num_under_way -= 1
            if self._num_under_way == 0:
                self._busy_s += self._clock() - self._since_s
