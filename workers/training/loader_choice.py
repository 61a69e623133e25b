"""Who is to read samples: the training thread itself, a thread beside it, or processes, by what rounds took.

Pure: what is measured comes in, who reads comes out. As long as waiting for data is a small part of a round the
training thread reads by itself. Where it is not, the others are tried in turns with what is in force, a few rounds
each; one is kept if a sample takes clearly less time with it and less of a round is waited.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean, median

from workers.measures import Compared, compared
from workers.medians import error_of_mean
from workers.training.stopwatch import in_words

WORTH = 0.1
"""The share of a round that waiting for data must take before anything is tried."""

GAIN = 0.1
"""By how much less time a sample must take for another way to be kept; none for reading inline, which costs nothing."""

MAX_PROCESSES = 8
NUM_ROUNDS = 4
NUM_SETTLING = 2
"""Rounds after a change of turns that do not count: what is read ahead has yet to come."""

MOST_ROUNDS = 30
STRETCH_S = 0.15
"""Of a round's own time, where that does not take more than ``MOST_ROUNDS``: rounds that compare tell nothing else."""

NUM_STRETCHES = 2
"""Of each of the two that are compared; the faster counts, as what else the machine does only ever adds."""

MAX_START_S = 300.0
"""Seconds of rounds in which what is on trial must have become ready; a dataset may hang where it is unpickled."""

PATIENCE = 500
MAX_PATIENCE = 8_000
"""Rounds until what was refused is tried again, twice as many each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Who reads: ``num_processes`` of them, or a thread, or neither and thus the training thread."""

    num_processes: int = 0
    has_thread: bool = False

    def __str__(self) -> str:
        if self.has_thread:
            return "a reading thread"
        if self.num_processes:
            return f"{self.num_processes} loader process{'es' if self.num_processes > 1 else ''}"
        return "inline"


INLINE, THREAD = Way(), Way(has_thread=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCost:
    """One round of this rank: seconds of waiting for data and of computing, and its samples."""

    waited_s: float
    compute_s: float
    num_samples: int

    @property
    def own_s(self) -> float:
        return self.waited_s + self.compute_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is known of reading inline: whether the data are random, and the seconds of a round.

    ``cpu_share`` is the part of ``waited_s`` in which reading kept a processor busy.
    """

    is_random: bool
    waited_s: float
    compute_s: float
    cpu_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``after`` is in force from now on; it may be what was in force ``before``, after others were tried.

    ``cost_s`` are the seconds by which the rounds of these trials were longer than by ``after``.
    """

    before: Way
    after: Way
    reason: str
    compared: Compared | None = None
    cost_s: float = 0.0


@dataclass(slots=True)
class _Stretch:
    """Rounds on end that were read in one way; the first few only settle."""

    costs: list[RoundCost] = field(default_factory=list)
    num_settling: int = NUM_SETTLING

    def add(self, cost: RoundCost) -> None:
        if self.num_settling > 0:
            self.num_settling -= 1
        else:
            self.costs.append(cost)

    @property
    def is_full(self) -> bool:
        is_long = len(self.costs) >= MOST_ROUNDS or sum(cost.own_s for cost in self.costs) >= STRETCH_S
        return is_long and len(self.costs) >= NUM_ROUNDS

    @property
    def share(self) -> float:
        own_s = sum(cost.own_s for cost in self.costs)
        return sum(cost.waited_s for cost in self.costs) / own_s if own_s > 0 else 0.0

    @property
    def sample_s(self) -> float:
        return sum(cost.own_s for cost in self.costs) / max(1, sum(cost.num_samples for cost in self.costs))

    @property
    def seconds(self) -> list[float]:
        """Those a sample, by round."""
        return [cost.own_s / cost.num_samples for cost in self.costs if cost.num_samples and cost.own_s > 0]


class LoaderChoice:
    """``num_cpus`` are those of this worker, its training thread's among them: while that waits, loaders have it."""

    def __init__(self, num_cpus: float) -> None:
        self._num_cpus = max(1.0, num_cpus)
        self._kept = INLINE
        self._tried: Way | None = None
        self._is_turn_of_tried = False
        self._start_s = 0.0
        self._stretch = _Stretch()
        self._done: dict[Way, list[_Stretch]] = {}
        self._refused: dict[Way, str] = {}
        self._impossible: dict[str, str] = {}
        self._reading: Reading | None = None
        self._trials_s, self._trial_samples, self._sample_s = 0.0, 0, 0.0
        self._num_rounds = 0
        self._patience = self._next_patience = PATIENCE
        self.is_probing = False

    @property
    def way(self) -> Way:
        """Who is to read the next round."""
        return self._tried if self._tried is not None and self._is_turn_of_tried else self._kept

    @property
    def tried(self) -> Way | None:
        """What is on trial, so that it should be there; None where nothing is."""
        return self._tried

    @property
    def kept(self) -> Way:
        """What is in force."""
        return self._kept

    def interrupted(self) -> None:
        """Another plan is in force: the stretch that is being measured does not count."""
        self._stretch = _Stretch()

    def probed(self, reading: Reading) -> None:
        """Take what was found out about reading inline, after ``is_probing``."""
        self._reading, self.is_probing = reading, False

    def measured(self, cost: RoundCost, *, is_ready: bool) -> Verdict | None:
        """Take one round of ``way``; ``is_ready``: what is on trial can read by now. A verdict where one is due."""
        self._num_rounds += 1
        if self._tried is not None and not is_ready:
            self._start_s += cost.own_s
            is_late = self._start_s > MAX_START_S
            return self.cannot(self._tried, f"it was not ready within {MAX_START_S:g} s") if is_late else None
        self._stretch.add(cost)
        if self._tried is not None:
            self._trials_s, self._trial_samples = self._trials_s + cost.own_s, self._trial_samples + cost.num_samples
        if not self._stretch.is_full:
            return None
        stretch, self._stretch = self._stretch, _Stretch()
        if self._tried is None:
            return self._watched(stretch)
        self._done.setdefault(self.way, []).append(stretch)
        self._is_turn_of_tried = not self._is_turn_of_tried
        tried = self._done.get(self._tried, [])
        if min(len(tried), len(self._done.get(self._kept, []))) < NUM_STRETCHES:
            return None
        return self._judged(self._tried)

    def fewer(self, num_processes: int) -> None:
        """No more than so many processes fit beside this one, of those that are on trial."""
        assert self._tried is not None
        self._tried = Way(num_processes=num_processes)

    def cannot(self, way: Way, reason: str) -> Verdict | None:
        """``way`` cannot read, or not any more; a verdict where it was in force or this was the last to be tried."""
        kind = _kind(way)
        self._impossible[kind] = reason
        before = self._kept
        if self._tried is not None and _kind(self._tried) == kind:
            self._end_trial()
        elif _kind(self._kept) != kind:
            return None
        else:
            self._kept = INLINE
            self._end_trial()
            return Verdict(before=before, after=INLINE, reason=f"{way} cannot go on: {reason}")
        return self._next_or_none()

    def _watched(self, stretch: _Stretch) -> Verdict | None:
        self._trials_s, self._trial_samples, self._sample_s = 0.0, 0, stretch.sample_s
        if self._kept != INLINE:
            if self._num_rounds >= self._patience:  # what took long may have become fast: a cache that has filled
                self._begin_trial(INLINE)
            return None
        if stretch.share < WORTH:
            self._reading = None
            return None
        if self._refused and self._num_rounds < self._patience:
            return None
        if self._reading is None:
            self.is_probing = True
            return None
        self._refused = {}
        return self._next_or_none()

    def _next_or_none(self) -> Verdict | None:
        """Try what is left to try; a verdict that all stays as it is where that is nothing."""
        candidates = [way for way in self._candidates() if way not in self._refused]
        if candidates:
            self._begin_trial(candidates[0])
            return None
        if self._kept != INLINE and not self._refused:
            return None
        told = [f"{way}: {why}" for way, why in self._refused.items()]
        told += [why for kind, why in self._impossible.items() if kind not in map(_kind, self._refused)]
        kept = self._kept
        if kept == INLINE:
            self._refused.setdefault(THREAD, "")  # nothing is tried again until patience is over
            self._wait_longer()
        who = "reading inline" if kept == INLINE else str(kept)
        reason = f"{who} stays; {'; '.join(told) or 'there is no other way'}"
        return Verdict(before=kept, after=kept, reason=reason, cost_s=self._cost_s())

    def _cost_s(self) -> float:
        return max(0.0, self._trials_s - self._trial_samples * self._sample_s)

    def _candidates(self) -> list[Way]:
        reading = self._reading
        if reading is None:
            return []
        found = []
        if self._kept == INLINE and "thread" not in self._impossible:
            if reading.is_random:
                self._impossible["thread"] = "a thread would draw the numbers of training, as the data are random"
            else:
                found.append(THREAD)
        if not self._kept.num_processes and "processes" not in self._impossible:
            found.append(Way(num_processes=self._num_processes(reading)))
        return found

    def _num_processes(self, reading: Reading) -> int:
        """As many as read a batch while one is computed; of those that keep processors busy no more than there are."""
        wanted = math.ceil(reading.waited_s / max(reading.compute_s, 1e-6)) + 1
        bound = max(1, round(self._num_cpus / max(reading.cpu_share, 1e-3)))
        return max(1, min(wanted, bound, MAX_PROCESSES))

    def _begin_trial(self, way: Way) -> None:
        self._tried, self._is_turn_of_tried, self._done = way, True, {}
        self._start_s, self._stretch = 0.0, _Stretch()

    def _end_trial(self) -> None:
        self._tried, self._is_turn_of_tried, self._done = None, False, {}
        self._stretch = _Stretch()

    def _wait_longer(self) -> None:
        self._num_rounds, self._patience = 0, self._next_patience
        self._next_patience = min(2 * self._next_patience, MAX_PATIENCE)

    def _judged(self, tried: Way) -> Verdict | None:
        kept = self._kept
        old, new = (min(self._done[way], key=lambda s: s.sample_s) for way in (kept, tried))
        shares = [median(s.share for s in self._done[way]) for way in (kept, tried)]
        gain = 1.0 - new.sample_s / old.sample_s
        told = (
            f"a sample took {in_words(new.sample_s)} instead of {in_words(old.sample_s)}, and waiting for data "
            f"{shares[1]:.0%} of a step instead of {shares[0]:.0%}"
        )
        self._end_trial()
        if tried == INLINE:
            self._wait_longer()
            if gain < 0:
                return None
            self._refused = {kept: told}
        elif gain < GAIN or shares[1] >= shares[0]:
            self._refused[tried], self._sample_s = told, old.sample_s
            return self._next_or_none()
        self._sample_s = new.sample_s
        self._kept, self._num_rounds = tried, 0
        cost_s = self._cost_s()
        if tried == THREAD and shares[1] >= WORTH:
            self._trials_s, self._trial_samples = 0.0, 0  # what follows is another verdict's
            self._next_or_none()
        reason = f"with {tried} {told}" if tried != INLINE else told
        # Loaders bring samples in bursts: of such rounds a median tells nothing.
        took = compared("sample", old.seconds, new.seconds, fmean, error_of_mean)
        return Verdict(before=kept, after=tried, reason=reason, compared=took, cost_s=cost_s)


def _kind(way: Way) -> str:
    return "thread" if way.has_thread else "processes" if way.num_processes else "inline"
