"""How old the last sign of another process is: by the time of day, and by a clock that nobody sets."""

from __future__ import annotations

from collections.abc import Callable

from service.stillness import Stillness


class SignOfLife:
    """As this process sees it. One of a time to come, as clocks were set back since, is young only when it changes."""

    def __init__(self, clock: Callable[[], float], monotonic_s: Callable[[], float]) -> None:
        self._clock, self._monotonic_s = clock, monotonic_s
        self._began_s = monotonic_s()
        self._seen = Stillness[float | None](None, monotonic_s)

    def age_s(self, written_at: float | None) -> float:
        """Of the last one that is there now (Unix seconds); None: there was none yet, as long as this process looks."""
        self._seen.see(written_at)
        told_s = 0.0 if written_at is None else self._clock() - written_at
        return max(told_s, self._seen.age_s)

    @property
    def watched_s(self) -> float:
        """Since this process began."""
        return self._monotonic_s() - self._began_s
