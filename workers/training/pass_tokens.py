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

LEAP = 2
"""So many times the tokens that were seen is as far as a line is believed."""

SLACK = 2.0
"""So much more than the line says may a merged pass take: attention takes tokens times the longest (1.7 simulated)."""

SHRUNK, WHOLE = 0.9, 0.95
"""Of the room that there was: less has been taken by others, and not by passes themselves; more is all of it again."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A round's largest pass in tokens, what was held at most, and what there was."""

    num_tokens: int
    peak_bytes: int
    limit_bytes: int


class PassTokens:
    """Counted in ``unit``. Where memory ran out, or others took of it, there is a limit until it is there again.

    Rounds under a limit are not looked at: they would tell little of larger passes, and push out those that do.
    ``is_fixed``: the spec fixes the size in samples, which is not to be lowered by tokens.
    """

    def __init__(self, unit: str, *, is_fixed: bool = False) -> None:
        self.unit, self._is_fixed = unit, is_fixed
        self._seen: deque[_Seen] = deque(maxlen=NUM_SEEN)
        self.again()

    def again(self) -> None:
        """What a pass takes has changed: nothing is known."""
        self._seen.clear()
        self._limit: int | None = None
        self._capped_bytes: int | None = None  # what room there was where memory had run out
        self._is_foreseen = False  # the limit is by the line
        self._wanted = 0

    def within(self, num_tokens: int) -> int:
        """As many of ``num_tokens`` as a pass may have, at least 1."""
        return max(1, num_tokens if self._limit is None else min(num_tokens, self._limit))

    def halve(self, tried: int) -> int | None:
        """Remember that ``tried`` tokens did not fit, and tell how many to have; None where fewer may not be chosen.

        Those that were seen to fit are kept, if ``tried`` was more.
        """
        if self._is_fixed or tried <= 1:
            return None
        self._wanted = max(self._wanted, tried)
        self._limit = max(tried // 2, self.largest if self.largest < tried else 0)
        self._capped_bytes, self._is_foreseen = None, False
        return self._limit

    def seen(self, num_tokens: int, peak_bytes: int, room: Room) -> None:
        """A round whose largest pass had ``num_tokens`` held ``peak_bytes`` at most."""
        if num_tokens > 0 and self._limit is None:
            limit_bytes = room.limit_bytes or 0
            self._seen.append(_Seen(num_tokens=num_tokens, peak_bytes=peak_bytes, limit_bytes=limit_bytes))

    @property
    def largest(self) -> int:
        """Of the passes of the rounds that were seen last; 0 before any was."""
        return max((seen.num_tokens for seen in self._seen), default=0)

    @property
    def line(self) -> Line | None:
        """By least squares, so high that none of the rounds lies above it; None while they tell too little."""
        points = [(seen.num_tokens, seen.peak_bytes) for seen in self._seen]
        if len(points) < LEAST_SEEN or self.largest < SPREAD * min(n for n, _ in points):
            return None
        mean_n, mean_bytes = fmean(n for n, _ in points), fmean(b for _, b in points)
        slope = sum((n - mean_n) * (b - mean_bytes) for n, b in points) / sum((n - mean_n) ** 2 for n, _ in points)
        # What is finer than memory is handed out in must not be taken for nothing.
        token_bytes = max(slope, RESOLUTION_BYTES / self.largest)
        return Line(fixed_bytes=round(max(b - token_bytes * n for n, b in points)), token_bytes=token_bytes)

    def fitting(self, room: Room) -> int | None:
        """How many tokens a merged pass may have; None while that is unknown."""
        line = self.line
        if line is None or room.limit_bytes is None:
            return None
        return max(self.largest, min(LEAP * self.largest, int(line.bound(room.limit_bytes) / SLACK)))

    def watch(self, room: Room) -> Choice | None:
        """Follow the memory: a limit where others have taken of it, none where it is there again."""
        if self._is_fixed or room.limit_bytes is None or not room.is_shared:
            return None
        line = self.line
        if line is not None and (self._limit is None or self._is_foreseen):
            return self._foreseen(line, room.limit_bytes)
        if self._limit is None:
            return None
        if self._capped_bytes is None:
            self._capped_bytes = room.limit_bytes
        was_short = self._capped_bytes < SHRUNK * self._room_bytes
        is_whole = was_short and room.limit_bytes >= WHOLE * self._room_bytes
        is_more = room.limit_bytes > GIVEN_BACK * self._capped_bytes
        return self._lifted(room.limit_bytes) if is_whole or is_more else None

    @property
    def _room_bytes(self) -> int:
        """The most that there was for passes without a limit; 0 before any was seen."""
        return max((seen.limit_bytes for seen in self._seen), default=0)

    def _foreseen(self, line: Line, limit_bytes: int) -> Choice | None:
        """Lower the limit where what is let through would not fit, raise it where clearly more would."""
        wanted = max(self._wanted, self.largest)
        is_whole = limit_bytes >= WHOLE * self._room_bytes
        now, most = self._limit or wanted, wanted if is_whole else min(wanted, line.bound(limit_bytes))
        if self._limit is not None and (most == wanted or most > GIVEN_BACK * now):
            return self._lifted(limit_bytes) if most == wanted else self._limited(now, most, line, limit_bytes)
        has_shrunk = limit_bytes < SHRUNK * self._room_bytes
        if not has_shrunk or line.at(now) <= limit_bytes or not 0 < most < now:
            return None
        return self._limited(now, most, line, limit_bytes)

    def _lifted(self, limit_bytes: int) -> Choice:
        size, self._limit, self._capped_bytes, self._is_foreseen, self._wanted = self._wanted, None, None, False, 0
        reason = f"{size} {self.unit} a forward pass again: {mib(limit_bytes)} of memory are there by now"
        return Choice(size=size, reason=reason, seconds={}, unit=self.unit)

    def _limited(self, now: int, most: int, line: Line, limit_bytes: int) -> Choice:
        self._wanted = max(self._wanted, now)
        self._limit, self._is_foreseen = most, True
        told = f"{self._wanted} {self.unit} a forward pass would take about {mib(line.at(self._wanted))} of the"
        reason = f"{told} {mib(limit_bytes)} that there are by now"
        return Choice(size=most, reason=reason, seconds={}, unit=self.unit)
