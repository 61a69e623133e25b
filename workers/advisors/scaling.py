"""How many workers to ask for: growth that pays back, and giving back what did not. Pure; times are seconds.

What a job may have, and what it must give back to others, is not asked here: that is the queue's to say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TypeAlias

from workers.advisors.judging import Rate
from workers.advisors.throughput import Estimate

LEAST_GAIN = 1.05
"""A size must be this many times as fast as the one before: less is noise and not worth the change."""

LEAST_SAVED_S = 5.0
LEAST_PAYBACK = 2.0
"""A change must save this many times the seconds for which it halts training."""

REST_S = 10.0
"""Least time between two changes of size."""

SURE = math.log(2) / 2
"""The largest error of a model that is believed: two deviations are a factor of two, as much as a leap may bring."""

MIN_STEPS = 5
FIRST_STALL_S = 1.0
FIRST_DELAY_S = 20.0
"""What a change is taken to cost before any was measured: seconds without a step, seconds until effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A job that trains with ``num_workers`` and may have ``num_offered``.

    ``rates`` are those still remembered, by size. ``num_left`` is in samples, None while unknown.
    ``since_change_s`` is how long this size has been in force. ``stalls_s`` and ``delays_s`` are the seconds
    without a step, and until effect, of past resizes. ``foreseen`` is how many times as fast as this size others are by
    the model fitted to the job's steps; of many sizes it tells some. ``tried`` are those that were measured once, of
    which only trying shows what they are now. ``refused`` maps sizes that did not pay to the seconds until they are
    tried again.
    """

    num_workers: int
    num_offered: int
    rates: Mapping[int, Rate]
    num_left: int | None
    since_change_s: float
    stalls_s: tuple[float, ...] = ()
    delays_s: tuple[float, ...] = ()
    foreseen: Mapping[int, Estimate] = field(default_factory=dict)
    tried: frozenset[int] = frozenset()
    refused: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Stay at this size; ``reason`` is a sentence for the job's owner."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Go to another size; ``expected_gain`` is its speed over the present one."""

    num_workers: int
    reason: str
    expected_gain: float


Advice: TypeAlias = Keep | Change


def predict(rates: Mapping[int, Rate], num_workers: int) -> float:
    """Samples a second at a size that is larger than the smallest measured one.

    As measured; else by Amdahl's law, time = serial + parallel / workers, through the two nearest sizes
    that were; else in proportion, since only trying shows.
    """
    if num_workers in rates:
        return rates[num_workers].samples_per_s
    below = sorted(size for size in rates if size < num_workers)
    above = [size for size in rates if size > num_workers]
    high = min(above) if above else below.pop()
    sample_s = 1 / rates[high].samples_per_s
    if not below:
        return num_workers / high / sample_s
    low = below[-1]
    parallel = (1 / rates[low].samples_per_s - sample_s) / (1 / low - 1 / high)
    parallel = min(max(parallel, 0.0), sample_s * high)
    return 1 / (sample_s - parallel / high + parallel / num_workers)


def advise(situation: Situation) -> Advice:
    """The size to ask for. Growth goes by doubling at most, so that each leap is measured before the next."""
    size, rate = situation.num_workers, situation.rates.get(situation.num_workers)
    if situation.num_offered <= size:
        return Keep(reason="There is no room for more workers.")
    if rate is None or rate.num_steps < MIN_STEPS or situation.since_change_s < REST_S:
        return Keep(reason=f"There is room for {situation.num_offered}; its speed with {size} is being measured.")
    largest = min(situation.num_offered, 2 * size)
    gains = {n: _gain(situation, n, rate) for n in range(size + 1, largest + 1) if not _is_refused(situation, n)}
    if not gains:
        return Keep(reason=_held_back(situation))
    best = max(gains, key=lambda n: gains[n])
    gain, told = gains[best], _in_words(situation, best, gains[best])
    if gain < LEAST_GAIN:
        return Keep(reason=f"It does not grow to {best}: {told}, and {LEAST_GAIN} is the least that is worth a change.")
    left_s, saved_s = _left_s(situation, rate), _saved_s(situation, rate, gain)
    least_s = max(LEAST_SAVED_S, LEAST_PAYBACK * _stall_s(situation))
    if saved_s is not None and saved_s < least_s:
        return Keep(
            reason=f"It does not grow to {best}: that would save {max(0.0, saved_s):.0f} s of the {left_s:.0f} s left, "
            f"and {least_s:.0f} s is the least that is worth a change."
        )
    saving = "" if saved_s is None else f" and to save {saved_s:.0f} s of {left_s:.0f} s"
    return Change(
        num_workers=best,
        reason=f"{best} workers are {told}{saving}",
        expected_gain=gain,
    )


def _gain(situation: Situation, num_workers: int, now: Rate) -> float:
    told = _modelled(situation, num_workers)
    return predict(situation.rates, num_workers) / now.samples_per_s if told is None else told.value


def _modelled(situation: Situation, num_workers: int) -> Estimate | None:
    """What the model tells, where it is sure enough of a size that was not measured: else only trying shows."""
    if num_workers in situation.rates or num_workers in situation.tried:
        return None
    told = situation.foreseen.get(num_workers) or _between(situation, num_workers)
    return None if told is None or told.error > SURE else told


def _between(situation: Situation, num_workers: int) -> Estimate | None:
    """By the nearest sizes that are foreseen, in proportion of their logarithms; None beyond the largest of them."""
    told = {situation.num_workers: Estimate(1.0, 0.0), **situation.foreseen}
    above = [size for size in told if size > num_workers]
    if not above:
        return None
    low, high = max(size for size in told if size < num_workers), min(above)
    fraction = math.log(num_workers / low) / math.log(high / low)
    value = told[low].value * (told[high].value / told[low].value) ** fraction
    return Estimate(value, max(told[low].error, told[high].error))


def _in_words(situation: Situation, num_workers: int, gain: float) -> str:
    as_fast, told = f"times as fast as {situation.num_workers}", _modelled(situation, num_workers)
    if told is None:
        return f"{'measured' if num_workers in situation.rates else 'expected'} to be {gain:.2f} {as_fast}"
    low, high = gain / math.exp(2 * told.error), gain * math.exp(2 * told.error)
    return f"expected by the model of its steps to be {gain:.2f} ({low:.2f} to {high:.2f}) {as_fast}"


def _is_refused(situation: Situation, num_workers: int) -> bool:
    """Whether it, or a size on the way to it, did not pay."""
    return any(situation.num_workers < n <= num_workers for n in situation.refused)


def _held_back(situation: Situation) -> str:
    size = situation.num_workers + 1
    left_s = situation.refused[size]
    return f"It does not grow to {size}: that did not pay, and is tried again in {left_s:.0f} s at the soonest."


def _stall_s(situation: Situation) -> float:
    return median(situation.stalls_s) if situation.stalls_s else FIRST_STALL_S


def _left_s(situation: Situation, rate: Rate) -> float:
    return (situation.num_left or 0) / rate.samples_per_s


def _saved_s(situation: Situation, rate: Rate, gain: float) -> float | None:
    """Seconds by which the job ends earlier; the gain begins only when the newcomers are ready."""
    if situation.num_left is None:
        return None
    delay_s = median(situation.delays_s) if situation.delays_s else FIRST_DELAY_S
    sped_up_s = max(0.0, _left_s(situation, rate) - delay_s)
    return sped_up_s * (1 - 1 / gain) - _stall_s(situation)
