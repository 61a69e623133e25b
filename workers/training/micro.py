"""How many samples a forward pass: the fastest size that fits, found by trying sizes while training.

However a part of a batch is cut, its sums are the same: a size is tried in rounds that count like all
others, and no step is spent on it. Pure: the clock and the memory are read by whoever calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from workers.measures import FILL, Compared, compared
from workers.training.micro_search import LEVEL, Search, Trial, least_seconds
from workers.training.stopwatch import in_words

LEAST_PART = 16
"""Smaller parts are computed whole: there is nothing worth trying."""

FIRST = 8
_EQUAL = 1.01
_MAX_ROUNDS = 40
_NUM_OTHER_PARTS = 2
_OTHER_PART = 1.5
_FREE = 0.8
FURTHEST = 16
"""Times as many samples as the first passes had are tried next where those took next to no memory."""

_PLENTY = 0.025
GIVEN_BACK = 1.25
RESOLUTION_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Memory of this worker in bytes: ``limit_bytes`` of it may be used, None where nobody can tell.

    ``is_forgiving``: to run past it costs no more than an error. On a CPU it may end the process, and within a limit of
    its own libraries give back little of what they took by then (oneDNN), so that smaller passes do not fit either.
    ``is_shared``: others take of it and give back, so that it moves.
    """

    limit_bytes: int | None = None
    is_forgiving: bool = False
    is_shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was settled on, and why; ``seconds`` a sample by size, as far as they were measured.

    ``is_whole``: a part of the batch is computed in one pass. ``compared`` is it with the largest that was tried, None
    where it is that one. ``cost_s`` are the seconds by which the rounds that tried sizes were longer than at this one.
    """

    size: int
    is_whole: bool = False
    reason: str
    seconds: Mapping[int, float]
    unit: str = "samples"
    compared: Compared | None = None
    cost_s: float = 0.0


class MicroSize:
    """Samples of a forward pass of one worker; ``fixed`` is the spec's, None for ``auto``.

    ``least`` is the smallest size that is tried. A size at which memory ran out is not tried again before others have
    given memory back, or passes take another amount of it.
    """

    def __init__(self, fixed: int | None, least: int = 1) -> None:
        self._fixed, self._least = fixed, least
        self._limit = self._ceiling = fixed
        self._capped_bytes: int | None = None  # what room there was where memory had run out
        self._part = 0
        self._num_other = 0
        self._num_rounds, self._rounds_s, self._apart_s = 0, 0.0, inf
        self._base_bytes = self._first_bytes = 0
        self._trials: dict[int, Trial] = {}
        self._size: int | None = None
        self._excluded: list[int] = []
        self._is_regrouped = False
        self.is_trying = False

    def within(self, num_samples: int) -> int:
        """The size for a part of ``num_samples``, at least 1; forward passes of one part are alike in size."""
        target = num_samples if self._target is None else min(num_samples, self._target)
        if self._fixed is not None or num_samples == 0:
            return max(1, target)
        num_passes = -(-num_samples // max(1, target))
        return self._enough(num_samples, -(-num_samples // num_passes))

    def _enough(self, num_samples: int, size: int) -> int:
        """A larger size where ``size`` is below the least: another part than was tried may be cut so."""
        larger = -(-num_samples // max(1, num_samples // self._least))
        is_tight = self._limit is not None or self._excluded
        tried = max(_OTHER_PART * (self._size or 0), max(self._trials, default=0))
        return larger if size < self._least and not is_tight and larger <= tried else size

    def begin(self, num_samples: int, read_bytes: Callable[[], int], since_s: float = 0.0) -> int:
        """The size for the next round's part, which may begin to try others: from the small ones on.

        ``read_bytes`` tells how many are held now, ``since_s`` are the seconds since the round before began.
        """
        self._apart_s = min(self._apart_s, since_s)
        is_grown = self._size is not None and self._size >= self._part and num_samples > self._part
        is_unlike = is_grown or not self._part / _OTHER_PART <= num_samples <= self._part * _OTHER_PART
        is_other = is_unlike and not self._holds(num_samples)
        # A single other part is the job's last: it is not worth beginning again.
        self._num_other = self._num_other + 1 if is_other and self._part else 0
        if self._fixed is None and is_other and (self._num_other == 0 or self._num_other >= _NUM_OTHER_PARTS):
            self._part, self._num_other = num_samples, 0
            self._begin(read_bytes())
        return self.within(num_samples)

    def _holds(self, num_samples: int) -> bool:
        """Whether what was found for another part is known to be the fastest for one of ``num_samples``, too.

        Larger passes were clearly slower, and a pass takes as long whatever the part, among the same workers.
        """
        seconds = {} if self.is_trying or self._size is None or self._is_regrouped else least_seconds(self._trials)
        if self._size not in seconds or self._size > num_samples:
            return False
        return any(seconds[s] > LEVEL * seconds[self._size] for s in seconds if s > self._size)

    def regrouped(self) -> None:
        """Other workers compute beside this one from now on: what was found for a part holds for that one alone."""
        self._is_regrouped = True

    def again(self) -> None:
        """What a pass takes has changed: try anew from the next round on, as if nothing were known."""
        self._part, self._size = 0, None
        self._limit, self._capped_bytes = self._ceiling, None

    def measured(
        self, size: int, seconds: float, peak_bytes: int, room: Room, warm_s: float | None = None
    ) -> Choice | None:
        """Take what a round at ``size`` took: seconds a sample, bytes held at most. The choice once it is made.

        ``warm_s`` are the least seconds a sample of its passes but the first, None where nobody knows.
        """
        known, is_first = self._trials.get(size), self._num_rounds == 0
        self._num_rounds, self._rounds_s = self._num_rounds + 1, self._rounds_s + seconds * self._part
        if is_first:
            self._first_bytes = peak_bytes
            warm_s = warm_s if self._is_plentiful(room) else None
        self._excluded = [other for other in self._excluded if other != size]  # by now it has been found to fit
        self._trials[size] = self._measured(known, seconds, peak_bytes, warm_s)
        jump = self._furthest(size) if is_first and warm_s is not None else None
        following = jump or self._following(room)
        if following is not None and self._num_rounds < _MAX_ROUNDS:
            self._size = following
            return None
        self.is_trying = False
        return self._settled()

    def _measured(self, known: Trial | None, seconds: float, peak_bytes: int, warm_s: float | None) -> Trial:
        """A size after a round: in its first pass libraries set themselves up, in the very first the optimizer does."""
        if known is None and warm_s is not None:
            # In the very first round the peak is without what the optimizer keeps.
            return Trial(seconds=(warm_s,), peak_bytes=peak_bytes if self._num_rounds > 1 else 0, is_warm=True)
        if known is None:
            return Trial()
        if seconds <= 0.0:
            return known
        before = () if known.is_warm else known.seconds
        return Trial(seconds=(*before, seconds), peak_bytes=max(peak_bytes, known.peak_bytes))

    def _furthest(self, size: int) -> int | None:
        return max((s for s in self._sizes if size < s <= FURTHEST * size), default=None)

    def _is_plentiful(self, room: Room) -> bool:
        """Whether the first passes, before the optimizer has its state, took next to nothing of the memory.

        Within a limit of its own a worker has never plenty: what it gives back there it may not get again.
        """
        if room.limit_bytes is None:
            return True
        took_bytes, spare_bytes = self._first_bytes - self._base_bytes, room.limit_bytes - self._base_bytes
        return room.is_shared and took_bytes <= _PLENTY * spare_bytes

    @property
    def may_grow(self) -> bool:
        """Whether larger sizes than those tried are left, for which the peaks of these are to tell what is held."""
        return max(self._trials, default=0) < self._sizes[-1]

    def watch(self, read: Callable[[], Room]) -> Choice | None:
        """Follow the memory: a smaller size where others have taken of it; tried anew where it is there again."""
        if self.is_trying or self._fixed is not None or (self._size is None and self._limit is None):
            return None
        room = read()
        if room.limit_bytes is None or not room.is_shared:
            return None
        if self._limit is not None and self._capped_bytes is None:
            self._capped_bytes = room.limit_bytes
        elif self._capped_bytes is not None and room.limit_bytes > GIVEN_BACK * self._capped_bytes:
            self.again()
            return None
        if self._size is None:  # too small a part to try sizes for, halved where memory ran out
            return None
        expected = self._expected_bytes(self._size)
        if expected is not None and expected > room.limit_bytes:
            bound = self._bound(room.limit_bytes)
            fitting = [s for s in self._sizes if s < self._size and (self._expected_bytes(s) or 0) <= bound]
            if not fitting:
                return None
            self._excluded.append(self._size)
            before, self._size = self._size, fitting[-1]
            told = f"{before} samples a forward pass would take about {mib(expected)} of the {mib(room.limit_bytes)}"
            return Choice(size=self._size, reason=f"{told} that there are by now", seconds=least_seconds(self._trials))
        expectations = [expected for s in self._excluded if (expected := self._expected_bytes(s)) is not None]
        if any(expected < _FREE * room.limit_bytes for expected in expectations):
            self.again()
        return None

    def halve(self, tried: int, *, is_for_good: bool = False) -> int | None:
        """Remember that ``tried`` samples did not fit, or never will; what to have now, None where fewer may not be.

        Half of them, or what was the fastest so far where one of more samples came through in the same search.
        """
        if self._fixed is not None or tried <= 1:
            return None
        if self.is_trying and not is_for_good and (passed := self._passed_above(tried)) is not None:
            self.is_trying, self._size = False, passed
            return passed
        self._limit, self._capped_bytes = min(tried // 2, self._limit or tried), None
        self._ceiling = tried // 2 if is_for_good else self._ceiling
        self._trials = {size: trial for size, trial in self._trials.items() if size <= self._limit}
        if self._size is not None and self._size > self._limit:
            self._size = self._limit
        return self._limit

    def _passed_above(self, tried: int) -> int | None:
        """The fastest of those measured where one larger than ``tried`` came through: what ran out is not a pass's own.

        Libraries keep what each size that is tried has them prepare, and within a limit of its own a worker does not
        get that back. No more are tried then; where the one that is taken lacks memory, too, it is halved.
        """
        seconds = {size: s for size, s in least_seconds(self._trials).items() if size != tried}
        if all(size < tried for size in seconds):
            return None
        return min(seconds, key=lambda size: seconds[size])

    @property
    def _target(self) -> int | None:
        return self._limit if self._size is None else self._size

    @property
    def _sizes(self) -> list[int]:
        """What may be tried, ascending: the part cut in one, in two, in four."""
        largest = self._part if self._limit is None else min(self._part, self._limit)
        sizes = {-(-self._part // num_passes) for num_passes in _powers(self._part)}
        return sorted(s for s in sizes if min(self._least, largest) <= s <= largest) or [max(1, largest)]

    def _begin(self, held_bytes: int) -> None:
        self._trials, self._excluded, self._num_rounds, self._rounds_s, self._first_bytes = {}, [], 0, 0.0, 0
        self._base_bytes, first = held_bytes, max(FIRST, self._size or 0)  # what fitted another part fits this one
        self._size, self._is_regrouped, self._apart_s = None, False, inf
        self.is_trying = self._part >= LEAST_PART and len(self._sizes) > 1
        if self.is_trying:
            self._size = max((s for s in self._sizes if s <= first), default=self._sizes[0])

    def _following(self, room: Room) -> int | None:
        """The next size to try, None when enough is known."""
        search = Search(self._sizes, self._trials, self._part, lambda size: self._fits(size, room), self._apart_s)
        following = search.following()
        self._excluded += [size for size in search.refused if size not in self._excluded]
        return following

    def _fits(self, size: int, room: Room) -> bool:
        """Whether a size may be tried; twice the largest so far in any case, where too much is only an error."""
        largest = max(self._trials, default=size)
        if room.limit_bytes is None or size <= largest:
            return True
        bound = self._bound(room.limit_bytes)
        expected = self._expected_bytes(size)
        if expected is None:
            peak_bytes = self._trials[largest].peak_bytes or self._first_bytes
            expected = peak_bytes + max(0, peak_bytes - self._base_bytes)
            return size <= 2 * largest and (room.is_forgiving or expected <= bound)
        return expected <= bound or (room.is_forgiving and size <= 2 * largest)

    def _bound(self, limit_bytes: int) -> float:
        return limit_bytes - (1 - FILL) * max(0, limit_bytes - self._base_bytes)

    def _expected_bytes(self, size: int) -> int | None:
        """Bytes = a + b * samples through the two largest sizes that were measured; None with fewer."""
        known = sorted((s, trial.peak_bytes) for s, trial in self._trials.items() if trial.peak_bytes)
        if len(known) < 2:
            return None
        (low, low_bytes), (high, high_bytes) = known[-2:]
        # What is finer than memory is handed out in must not be taken for nothing.
        slope = max(0, high_bytes - low_bytes + RESOLUTION_BYTES * (size > high)) / (high - low)
        return round(high_bytes + slope * (size - high))

    @property
    def bytes_line(self) -> tuple[int, float] | None:
        """Bytes held without a sample, and for each of a forward pass, as fitted; None with fewer than two sizes."""
        known = sorted(size for size, trial in self._trials.items() if trial.peak_bytes)
        if len(known) < 2:
            return None
        low, high = ((size, self._trials[size].peak_bytes) for size in known[-2:])
        slope = max(0, high[1] - low[1]) / (high[0] - low[0])
        return round(high[1] - slope * high[0]), slope

    def _settled(self) -> Choice | None:
        seconds = least_seconds(self._trials)
        if not seconds:
            return None
        least = min(seconds.values())
        self._size = min(s for s in seconds if seconds[s] <= _EQUAL * least)
        reason = _found(self._size, seconds)
        expected = self._expected_bytes(self._size)
        more = "" if expected is None else f"; the worker holds about {mib(expected)}"
        left = [s for s in self._excluded if s > max(seconds)]
        refused = f"; {left[0]} would not fit into the memory that there is" if left else ""
        is_whole = self._size >= self._part
        with_largest = self._compared_with(max(seconds))
        cost_s = max(0.0, self._rounds_s - self._num_rounds * self._part * seconds[self._size])
        return Choice(
            size=self._size,
            is_whole=is_whole,
            reason=f"{reason}{self._by_passes(max(seconds))}{more}{refused}",
            seconds=seconds,
            compared=with_largest,
            cost_s=cost_s,
        )

    def _by_passes(self, largest: int) -> str:
        """Which of the two that are compared no whole round was measured of, in words."""
        warm = [str(s) for s in sorted({largest, self._size or largest}) if self._trials[s].is_warm]
        return f" ({' and '.join(warm)} by passes alone, without what a round takes besides)" if warm else ""

    def _compared_with(self, largest: int) -> Compared | None:
        if self._size is None or self._size == largest:
            return None
        return compared("sample", self._trials[largest].seconds, self._trials[self._size].seconds, min, None)


def _found(size: int, seconds: Mapping[int, float]) -> str:
    """What the size chosen is among those tried: a larger one is not taken for less than ``_EQUAL``."""
    found = "1 sample a forward pass is" if size == 1 else f"{size} samples a forward pass are"
    near = "" if seconds[size] <= min(seconds.values()) else f"within {_EQUAL - 1:.0%} of "
    return f"{found} {near}the fastest of those tried, a sample took " + ", ".join(
        f"{s}: {in_words(seconds[s])}" for s in seconds
    )


def _powers(part: int) -> list[int]:
    return [2**i for i in range(max(1, part).bit_length())]


def mib(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"
