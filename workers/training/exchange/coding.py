"""What encoding and decoding take, noted by the schemes themselves."""

from __future__ import annotations

import time
from collections.abc import Callable

from workers.training.device_clock import DeviceClock


class Lap:
    """A context whose seconds add up; it is not entered again while it lasts."""

    __slots__ = ("_begun_s", "_clock", "_seconds")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._begun_s = clock, 0.0
        self._seconds = 0.0

    def __enter__(self) -> None:
        self._begun_s = self._clock()

    def __exit__(self, *_: object) -> None:
        self._seconds += self._clock() - self._begun_s

    @property
    def seconds(self) -> float:
        """Of all so far."""
        return self._seconds


class DeviceLap:
    """The same as a CUDA device spends it on the current stream."""

    __slots__ = ("_clock", "_running", "_seconds")

    def __init__(self) -> None:
        self._running: list[DeviceClock] = []
        self._seconds = 0.0

    def __enter__(self) -> None:
        self._clock = DeviceClock()

    def __exit__(self, *_: object) -> None:
        self._clock.stop()
        self._running.append(self._clock)

    @property
    def seconds(self) -> float:
        """Of all so far; waits until the device has done what the last was of."""
        while self._running:
            self._seconds += self._running.pop().elapsed_s()
        return self._seconds


class Coding:
    """Seconds of one rank's thread (see ``by_thread``) or device so far.

    ``encode`` makes payloads of gradients, ``decode`` gradients of payloads.

    Copies, sums and what is kept of a round count where they belong to either; waiting for collectives does not.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.encode: Lap | DeviceLap = Lap(clock)
        self.decode: Lap | DeviceLap = Lap(clock)

    def by_thread(self) -> None:
        """From now on it is done beside what computes, maybe on the same core: what threads spend on it counts."""
        self.encode, self.decode = Lap(time.thread_time), Lap(time.thread_time)

    def by_device(self) -> None:
        """From now on it is a CUDA device that codes: its seconds count, not the thread's."""
        if isinstance(self.encode, Lap):
            self.encode, self.decode = DeviceLap(), DeviceLap()
