"""How many workers to ask for: growth that pays back, and giving back what did not. Pure; times are seconds.

What a job may have, and what it must give back to others, is not asked here: that is the queue's to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from workers.advisors.judging import Rate

LEAST_GAIN = 1.05
"""A size must be this many times as fast as the one before: less is noise and not worth the change."""

LEAST_SAVED_S = 5.0
LEAST_PAYBACK = 2.0
"""A change must save this many times the seconds for which it halts training."""

REST_S = 10.0
"""Least time between two changes of size."""

MIN_STEPS = 5
FIRST_STALL_S = 1.0
FIRST_DELAY_S = 20.0
"""What a change is taken to cost before any was measured: seconds without a step, seconds until effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A job that trains with ``num_workers`` and may have ``num_offered``.

    ``rates`` are those still remembered, by size. ``num_left`` is in samples, None while unknown.
    ``since_change_s`` is how long this size has been in force. ``stalls_s`` and ``delays_s`` are the seconds
    without a step, and until effect, of past resizes.
    """

    num_workers: int
    num_offered: int
    rates: Mapping[int, Rate]
    num_left: int | None
    since_change_s: float
    stalls_s: tuple[float, ...] = ()
    delays_s: tuple[float, ...] = ()


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
    best = max(range(size + 1, largest + 1), key=lambda n: predict(situation.rates, n))
    gain = predict(situation.rates, best) / rate.samples_per_s
    told = "measured" if best in situation.rates else "expected"
    if gain < LEAST_GAIN:
        return Keep(
            reason=f"It does not grow to {best}: {told} to be {gain:.2f} times as fast as {size}, "
            f"and {LEAST_GAIN} is the least that is worth a change."
        )
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
        reason=f"{best} workers are {told} to be {gain:.2f} times as fast as {size}{saving}",
        expected_gain=gain,
    )


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
