"""How long ago things were written, by a clock that nobody sets: the time of day may jump after they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Ages(Generic[T]):
    """As one leader knows them: when it first sees a thing, it takes it to be as old as its time says."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._begun_s: dict[T, float] = {}

    def age_s(self, thing: T, written_at: float, now: float) -> float:
        """Seconds; never less than 0. Both times are in Unix seconds."""
        here_s = self._monotonic_s()
        return here_s - self._begun_s.setdefault(thing, here_s - max(0.0, now - written_at))

    def forget_unless(self, is_there: Callable[[T], bool]) -> None:
        """Others are asked for no more."""
        self._begun_s = {thing: begun_s for thing, begun_s in self._begun_s.items() if is_there(thing)}
