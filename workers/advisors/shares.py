"""How to share a batch among workers of unequal speed, so that all are done at the same time. Pure.

Semi-dynamic load balancing (SoCC'20) and Cannikin: with T_i(b) = a_i + k_i * b the parts that take everybody
T* = (B + sum a_i / k_i) / sum 1 / k_i are the best ones; whoever would leave its bounds is held there, and the
others share the rest. Times are in seconds, parts in samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor
from statistics import median
from typing import TypeAlias

from workers.advisors.cost_line import Cost
from workers.errors import BatchSplitError

LEAST_GAIN = 1.05
"""Other parts must make steps this many times as fast: less is noise."""

LEAST_KEPT = 1.02
"""What they must turn out to bring. Where they were to show what more costs who waits, no more is asked than that they
fall short of what was expected by noise."""

LEAST_PART = 1
"""Nobody is left without a sample: its speed could never be seen again."""

GROWTH = 4
"""A part grows to so many times what was measured at most, or to an even share, which every part begins with: how a
line goes on far from there is anybody's guess."""

WAITS = 0.5
"""Whoever is done within so much of a step, with less than an even share, may get twice as much though little is
expected of it: a line through a single small part takes what is fixed for what samples cost."""

GROWTH_WAITING = 2
"""It gets no more at once, whatever its line promises: a few samples may be all that it can do fast."""

DOUBTS = 2.0
"""Standard errors by which an expected gain must exceed the least one."""

STRAGGLES = 1.25
"""With one sample it takes this many times as long as all others with the rest: no share is small enough."""

MOST_NAMED = 6
_HALVINGS = 60
_ROUNDING = 1e-9  # a part that is whole but for the last bits is whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The least and the most samples that a worker may have; ``most`` is None where memory sets none."""

    least: int = 0
    most: int | None = None

    def within(self, samples: float, size: int) -> float:
        """The part of a batch of ``size`` that is nearest to ``samples``."""
        return min(max(samples, self.least), size if self.most is None else min(self.most, size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The workers by rank: who they are, their parts, what these cost them.

    ``overhead_s`` is what a step takes besides the slowest one's own time. Memory bounds no part: a worker computes
    its own in passes that fit.
    """

    names: tuple[str, ...]
    parts: tuple[int, ...]
    costs: tuple[Cost, ...]
    overhead_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Leave the parts as they are; ``reason`` is a sentence for the job's owner."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Share the batch as ``parts`` by rank; ``expected_gain`` is the speed of steps over the present one.

    ``least_kept`` is what it must turn out to be, for the parts to stay.
    """

    parts: tuple[int, ...]
    reason: str
    expected_gain: float
    least_kept: float = LEAST_KEPT


Advice: TypeAlias = Keep | Change


def share(size: int, costs: Sequence[Cost], bounds: Sequence[Bounds]) -> tuple[int, ...]:
    """Parts of a batch of ``size`` samples that make the slowest as fast as can be; they sum to ``size``.

    Water-filling within the bounds. Of what rounding down leaves, each sample goes where it is done soonest, which is
    as fast as whole samples can be, where the largest remainder is not always; ties go to the faster one, then to the
    lower rank. With equal fixed costs and bounds nobody gets less than a slower one.

    Raises BatchSplitError where the bounds leave no such parts.
    """
    least, most = sum(one.least for one in bounds), sum(floor(one.within(size, size)) for one in bounds)
    if not least <= size <= most:
        raise BatchSplitError(
            f"a batch of {size} samples cannot be shared within bounds that ask for {least} to {most}; "
            "use fewer workers, or another batch.global_size"
        )
    level_s = _level_s(size, costs, bounds)
    parts = [floor(part + _ROUNDING) for part in _filled(level_s, size, costs, bounds)]
    for _ in range(size - sum(parts)):
        able = [i for i, one in enumerate(bounds) if parts[i] + 1 <= one.within(size, size)]
        parts[min(able, key=lambda i: (costs[i].seconds(parts[i] + 1), costs[i].sample_s, costs[i].fixed_s, i))] += 1
    return tuple(parts)


def _level_s(size: int, costs: Sequence[Cost], bounds: Sequence[Bounds]) -> float:
    """The longest time at which the parts that take so long are no more than ``size`` together."""
    low_s, high_s = 0.0, max(cost.seconds(size) for cost in costs)
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        if sum(_filled(middle_s, size, costs, bounds)) <= size:
            low_s = middle_s
        else:
            high_s = middle_s
    return low_s


def _filled(level_s: float, size: int, costs: Sequence[Cost], bounds: Sequence[Bounds]) -> list[float]:
    pairs = zip(costs, bounds, strict=True)
    return [bound.within((level_s - cost.fixed_s) / cost.sample_s, size) for cost, bound in pairs]


def advise(standing: Standing) -> Advice:
    """Other parts, where they are sure to pay."""
    size, costs = sum(standing.parts), standing.costs
    if size < len(costs) * LEAST_PART or min(standing.parts) < LEAST_PART:
        return Keep(reason=f"There is not a sample of each {size} for every one of {len(costs)} workers.")
    now_s = slowest_s(costs, standing.parts)
    parts = share(size, costs, _bounds(standing, now_s))
    then_s = slowest_s(costs, parts)
    gain = (now_s + standing.overhead_s) / (then_s + standing.overhead_s)
    doubt = DOUBTS * max(cost.error for cost in costs)
    waiting = _waiting(standing, parts, now_s)
    if gain < LEAST_GAIN + doubt and waiting is None:
        return Keep(
            reason=f"The parts stay {in_words(standing.parts)}: the best would make steps {gain:.2f} times as fast, "
            f"and {LEAST_GAIN + doubt:.2f} is the least that is worth a change."
        )
    told = f"parts {in_words(parts)} instead of {in_words(standing.parts)}, expected {gain:.2f} times as fast"
    if waiting is None:
        return Change(parts=parts, reason=f"{_slowest(standing)}; {told}", expected_gain=gain)
    # More for who waits hardly pays by itself while its part is small, and it may get still more.
    least_kept = min(LEAST_KEPT, gain / LEAST_GAIN)
    return Change(parts=parts, reason=f"{waiting}; {told}", expected_gain=gain, least_kept=least_kept)


def _slowest(standing: Standing) -> str:
    own_s = [cost.seconds(part) / part for cost, part in zip(standing.costs, standing.parts, strict=True)]
    slow, times = own_s.index(max(own_s)), max(own_s) / min(own_s)
    return f"worker {standing.names[slow]} takes {times:.1f} times as long a sample as the fastest"


def _waiting(standing: Standing, parts: Sequence[int], now_s: float) -> str | None:
    """Who is to get twice as much, as it waits for others most of a step; None where nobody does."""
    for name, cost, part, after in zip(standing.names, standing.costs, standing.parts, parts, strict=True):
        if after >= GROWTH_WAITING * part and _is_waiting(standing, cost, part, now_s):
            return f"worker {name} waits for others {1 - cost.seconds(part) / now_s:.0%} of a step"
    return None


def _is_waiting(standing: Standing, cost: Cost, part: int, now_s: float) -> bool:
    is_small = part * len(standing.parts) < sum(standing.parts)
    return is_small and cost.seconds(part) <= WAITS * now_s


def _bounds(standing: Standing, now_s: float) -> list[Bounds]:
    """From one sample to as far as a measurement reaches."""
    even = ceil(sum(standing.parts) / len(standing.parts))
    return [
        Bounds(
            least=LEAST_PART,
            most=GROWTH_WAITING * part if _is_waiting(standing, cost, part, now_s) else max(GROWTH * part, even),
        )
        for cost, part in zip(standing.costs, standing.parts, strict=True)
    ]


def slowest_s(costs: Sequence[Cost], parts: Sequence[int]) -> float:
    """What a step takes the worker that is done last."""
    return max(cost.seconds(part) for cost, part in zip(costs, parts, strict=True))


def stragglers(standing: Standing, times: float) -> dict[str, str]:
    """Workers that hold the others up whatever their share, the slowest first, each with a sentence of how much.

    Those that take so many ``times`` as long; of ones that were found by more, 1 tells whether they hold them up still.
    As many as can be: of two that are equally slow neither would stand out from all others.
    """
    size, costs = sum(standing.parts), standing.costs
    slowest = sorted(range(len(costs)), key=lambda rank: costs[rank].seconds(LEAST_PART), reverse=True)
    for num_slow in range(len(costs) - 1, 0, -1):
        slow, others = slowest[:num_slow], [costs[rank] for rank in slowest[num_slow:]]
        left = size - num_slow * LEAST_PART
        if left < len(others) * LEAST_PART:
            continue
        least_s = costs[slow[-1]].seconds(LEAST_PART)
        others_s = slowest_s(others, share(left, others, [Bounds(least=LEAST_PART)] * len(others)))
        if least_s > times * others_s + (times - 1) * standing.overhead_s:
            return {standing.names[rank]: _held_up(standing, rank, others_s) for rank in slow}
    return {}


def _held_up(standing: Standing, rank: int, others_s: float) -> str:
    return (
        f"worker {standing.names[rank]} cannot be balanced away: a step takes it "
        f"{standing.costs[rank].seconds(LEAST_PART):.3g} s with {LEAST_PART} sample, the others {others_s:.3g} s with "
        "all the rest"
    )


def in_words(parts: Sequence[int]) -> str:
    """``96 and 32``; of many workers the range."""
    if len(parts) > MOST_NAMED:
        return f"{min(parts)} to {max(parts)} (median {median(parts):g})"
    return " and ".join(filter(None, [", ".join(str(part) for part in parts[:-1]), str(parts[-1])]))
