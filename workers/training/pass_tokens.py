"""How many tokens a forward pass may have where samples have lengths, by the memory that there is. Pure.

Passes by length are of other sizes in each round, so that none need be tried: a line through what single rounds held
tells what others will hold.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import fmean

from workers.measures import FILL
from workers.training.micro import GIVEN_BACK, RESOLUTION_BYTES, Choice, Room, mib

NUM_SEEN = 16
LEAST_SEEN = 4
SPREAD = 1.2
"""By so much must the passes that were seen differ: memory is not handed out token by token."""

LEAP = 4
"""So many times the tokens that were seen is as far as a line is believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Bytes held by a pass of n tokens: at most about ``fixed_bytes + token_bytes * n``."""

    fixed_bytes: int
    token_bytes: float

    def at(self, num_tokens: int) -> int:
        return round(self.fixed_bytes + self.token_bytes * num_tokens)

    def bound(self, limit_bytes: int) -> int:
        """How many tokens may be expected to fit; 0 where none do."""
        spare_bytes = FILL * max(0, limit_bytes - self.fixed_bytes)
        return int(spare_bytes / self.token_bytes)


class PassTokens:
    """Counted in ``unit``. Where memory ran out, or others took of it, there is a limit until it is there again.

    ``is_fixed``: the spec fixes the size in samples, which is not to be lowered by tokens.
    """

    def __init__(self, unit: str, *, is_fixed: bool = False) -> None:
        self.unit, self._is_fixed = unit, is_fixed
        self._limit: int | None = None
        self._capped_bytes: int | None = None  # what room there was under the limit
        self._wanted = 0
        self._seen: deque[tuple[int, int]] = deque(maxlen=NUM_SEEN)

    def within(self, num_tokens: int) -> int:
        """As many of ``num_tokens`` as a pass may have, at least 1."""
        if self._limit is None or num_tokens <= self._limit:
            return max(1, num_tokens)
        self._wanted = max(self._wanted, num_tokens)
        return max(1, self._limit)

    def halve(self, tried: int) -> bool:
        """Remember that ``tried`` tokens did not fit; False where a smaller size may not be chosen."""
        if self._is_fixed or tried <= 1:
            return False
        self._wanted = max(self._wanted, tried)
        self._limit, self._capped_bytes = tried // 2, None
        return True

    def again(self) -> None:
        """What a pass takes has changed: nothing is known."""
        self._seen.clear()
        self._limit = self._capped_bytes = None

    def seen(self, num_tokens: int, peak_bytes: int) -> None:
        """A round whose largest pass had ``num_tokens`` held ``peak_bytes`` at most."""
        if num_tokens > 0:
            self._seen.append((num_tokens, peak_bytes))

    @property
    def largest(self) -> int:
        """Of the passes of the rounds that were seen last; 0 before any was."""
        return max((num_tokens for num_tokens, _ in self._seen), default=0)

    @property
    def line(self) -> Line | None:
        """By least squares, so high that none of the rounds lies above it; None while they tell too little."""
        if len(self._seen) < LEAST_SEEN or self.largest < SPREAD * min(n for n, _ in self._seen):
            return None
        mean_n, mean_bytes = fmean(n for n, _ in self._seen), fmean(b for _, b in self._seen)
        slope = sum((n - mean_n) * (b - mean_bytes) for n, b in self._seen) / sum(
            (n - mean_n) ** 2 for n, _ in self._seen
        )
        # What is finer than memory is handed out in must not be taken for nothing.
        token_bytes = max(slope, RESOLUTION_BYTES / self.largest)
        return Line(fixed_bytes=round(max(b - token_bytes * n for n, b in self._seen)), token_bytes=token_bytes)

    def fitting(self, room: Room) -> int | None:
        """How many tokens of a pass are expected to fit, as far as the line is believed; None while that is unknown."""
        line = self.line
        if line is None:
            return None
        furthest = LEAP * self.largest
        most = furthest if room.limit_bytes is None else min(furthest, line.bound(room.limit_bytes))
        return max(self.largest, most)

    def watch(self, room: Room) -> Choice | None:
        """Follow the memory: a limit where others have taken of it, none where it is there again."""
        if self._is_fixed or room.limit_bytes is None or not room.is_shared:
            return None
        if self._limit is not None and self._capped_bytes is None:
            self._capped_bytes = room.limit_bytes
        elif self._limit is not None and room.limit_bytes > GIVEN_BACK * (self._capped_bytes or 0):
            return self._lifted(room.limit_bytes)
        return self._lowered(room.limit_bytes)

    def _lifted(self, limit_bytes: int) -> Choice:
        self._limit = self._capped_bytes = None
        reason = f"{self._wanted} {self.unit} a forward pass again: {mib(limit_bytes)} of memory are there by now"
        return Choice(size=self._wanted, reason=reason, seconds={}, unit=self.unit)

    def _lowered(self, limit_bytes: int) -> Choice | None:
        line, now = self.line, self.largest if self._limit is None else min(self.largest, self._limit)
        if line is None or line.at(now) <= limit_bytes or not 0 < (most := line.bound(limit_bytes)) < now:
            return None
        self._wanted, self._limit, self._capped_bytes = max(self._wanted, now), most, limit_bytes
        told = f"{now} {self.unit} a forward pass would take about {mib(line.at(now))} of the {mib(limit_bytes)}"
        return Choice(size=most, reason=f"{told} that there are by now", seconds={}, unit=self.unit)
