"""What encoding and decoding take of a thread, noted by the schemes themselves."""

from __future__ import annotations

import time
from collections.abc import Callable


class Lap:
    """A context whose seconds add up; it is not entered again while it lasts."""

    __slots__ = ("_begun_s", "_clock", "seconds")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._begun_s = clock, 0.0
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._begun_s = self._clock()

    def __exit__(self, *_: object) -> None:
        self.seconds += self._clock() - self._begun_s


class Coding:
    """Seconds of one rank's thread so far: ``encode`` makes payloads of gradients, ``decode`` gradients of payloads.

    Copies, sums and what is kept of a round count where they belong to either; waiting for collectives does not. Of an
    accelerator it tells only when work was handed over.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.encode, self.decode = Lap(clock), Lap(clock)
