"""Hears whether a process lives on, by the signs of life of ``pulse``, and counts its silence."""

from __future__ import annotations

import contextlib
import os

FIRST_SIGN_LIMIT_S = 120.0  # a start imports much, which takes long on a busy machine
MAX_COUNTED_S = 1.0


class Vigil:
    """Over one process, from its start to its end. Time comes in from a monotonic clock.

    Only what passes between looks counts, and of a long gap only a second: a listener that was stopped
    itself, as with a whole machine or container, could not have heard anything meanwhile.
    """

    def __init__(self, patience_s: float, now_s: float) -> None:
        self._patience_s, self._limit_s = patience_s, FIRST_SIGN_LIMIT_S
        self._silent_s, self._looked_s = 0.0, now_s
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)

    @property
    def writing(self) -> int:
        """The end of the pipe for the process; of this one's until `hand_over`."""
        return self._writing

    @property
    def silent_s(self) -> float:
        """Seconds without a sign of life."""
        return self._silent_s

    def hand_over(self) -> None:
        """The process has its end of the pipe: this one's copy is closed."""
        os.close(self._writing)

    def is_silent_too_long(self, now_s: float) -> bool:
        """Look for signs of life. Called often, else silence is hardly counted."""
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        if self._hears():
            self._silent_s, self._limit_s = 0.0, self._patience_s
        else:
            self._silent_s += min(passed_s, MAX_COUNTED_S)
        return self._silent_s >= self._limit_s

    def close(self) -> None:
        os.close(self._reading)

    def _hears(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            return bool(os.read(self._reading, 65_536))
        return False
