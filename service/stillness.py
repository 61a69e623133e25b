"""How long a value that others write has stayed the same, by a clock that nobody sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Stillness(Generic[T]):
    """Of the value as it was seen last; what clocks of other machines say in it is not asked."""

    def __init__(self, value: T, monotonic_s: Callable[[], float]) -> None:
        self.value = value
        self._monotonic_s = monotonic_s
        self._since_s = monotonic_s()

    def see(self, value: T) -> None:
        """This is what it was a moment ago."""
        if value != self.value:
            self.value, self._since_s = value, self._monotonic_s()

    @property
    def age_s(self) -> float:
        """Since it was first seen as it is; less than it has been so, never more."""
        return self._monotonic_s() - self._since_s
