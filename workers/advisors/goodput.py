"""Which global batch makes the most progress a second: throughput times statistical efficiency. Pure.

Qiao et al. 2021 (OSDI), arXiv 2008.12260, section 3.1: a sample of a batch of M is worth (phi + M0) / (phi + M) of one
of the batch M0 that was asked for, where phi is the gradient noise scale (McCandlish et al. 2018, arXiv 1812.06162).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from workers.advisors.throughput import Estimate, Layout, Model

LEAST_GAIN = 1.05
"""A batch must make progress this many times as fast: less is noise and not worth its change."""

LEAST_STEPS_LEFT = 100
RATIO = 2**0.5
"""Batches are weighed in steps of this factor, up to twice the largest that was measured: the next leap comes after."""

LEAP = 4
"""So many times the largest that was measured where that is better even at the worst: a rate that rises by more at once
may throw off what was learned (Goyal et al. 2017, arXiv 1706.02677, section 2.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A job that trains under ``layout``; batches, ``noise_bounds`` and ``num_left`` are in samples.

    ``initial`` is the batch that was asked for and the least, ``most`` the largest allowed, ``largest_measured`` the
    largest that was. ``noise_bounds`` are what the noise scale is at least and at most. ``most_a_pass`` is what a
    forward pass may have, None where a whole part fits. ``refused`` maps batches that did not pay to the noise scale
    at which they did not. ``num_left`` is None while unknown.
    """

    layout: Layout
    initial: int
    most: int
    largest_measured: int
    noise_bounds: tuple[float, float]
    model: Model
    most_a_pass: int | None = None
    refused: Mapping[int, float] | None = None
    num_left: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Stay at this batch; ``reason`` is a sentence for the job's owner."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Go to another batch; ``expected_gain`` is progress a second over the present, ``error`` of its logarithm."""

    global_batch: int
    reason: str
    expected_gain: float
    error: float


Advice: TypeAlias = Keep | Change


def efficiency(global_batch: float, initial: float, noise_scale: float) -> float:
    """What a sample of a batch is worth, in samples of the initial one."""
    return (noise_scale + initial) / (noise_scale + global_batch)


def doubted(noise_bounds: tuple[float, float], before: int, after: int) -> float:
    """The noise scale by which a change of the batch is worth least."""
    return noise_bounds[0] if after > before else noise_bounds[1]


def advise(situation: Situation) -> Advice:
    """The batch to go to."""
    s = situation
    now = s.layout.global_batch
    if s.num_left is not None and s.num_left < LEAST_STEPS_LEFT * now:
        return Keep(reason=f"{now} samples a step stay: too few steps are left for a change to pay.")
    gains = {batch: _gain(s, batch) for batch in _candidates(s)}
    if not gains:
        return Keep(reason=f"{now} samples a step stay: {_nothing_left(s)}.")
    best = max(gains, key=lambda batch: gains[batch].value)
    gain = gains[best]
    told = (
        f"{best} samples a step are expected to make progress {gain.value:.2f} times as fast as {now}: "
        f"{_throughput_gain(s, best):.2f} times the samples a second, each worth "
        f"{_worth(s, best):.2f} times as much (noise scale at {'least' if best > now else 'most'} "
        f"{_noise(s, best):.0f} samples)"
    )
    if gain.value < LEAST_GAIN:
        return Keep(reason=f"{told}; {LEAST_GAIN} is the least that is worth a change.")
    return Change(global_batch=best, reason=told, expected_gain=gain.value, error=gain.error)


def _nothing_left(s: Situation) -> str:
    """Why there is no batch to weigh."""
    if not _allowed(replace(s, refused=None), s.most):
        return "no other batch lies within its bounds"
    nearest = ", ".join(str(batch) for batch in sorted(s.refused or ()))
    return (
        f"others did not pay (tried: {nearest}), and are tried again after some more steps or at other gradient noise"
    )


def _candidates(s: Situation) -> list[int]:
    """Batches near what was measured, and those further off that are better than these even at the worst."""
    reach = 2 * max(s.largest_measured, s.layout.global_batch)
    allowed = _allowed(s, LEAP * max(s.largest_measured, s.layout.global_batch))
    near = [batch for batch in allowed if batch <= reach]
    likeliest = max((_gain(s, batch).value for batch in near), default=LEAST_GAIN)
    if set(s.refused or ()) - set(allowed):
        return near  # what was sure has been wrong already
    return near + [batch for batch in allowed if batch > reach and _least_gain(s, batch) > likeliest]


def _allowed(s: Situation, most: int) -> list[int]:
    """Those within the bounds that were not refused."""
    now, workers = s.layout.global_batch, s.layout.num_workers
    least, most = max(s.initial, workers), min(s.most, most)
    if most < least:
        return []
    found, batch = set(), float(least)
    while batch <= most * 1.001:
        # A whole number of samples a worker, so that none computes more than another.
        found.add(min(most, max(least, round(batch / workers) * workers)))
        batch *= RATIO
    found.add(most)
    return sorted(batch for batch in found if batch != now and not _is_refused(s, batch))


def _is_refused(s: Situation, batch: int) -> bool:
    """Whether it, or one on the way to it, did not pay at about this noise; more of it favours larger ones."""
    now, noise = s.layout.global_batch, _noise(s, batch)
    if batch > now:
        return any(now < other <= batch and noise <= 1.5 * then for other, then in (s.refused or {}).items())
    return any(batch <= other < now and noise >= then / 1.5 for other, then in (s.refused or {}).items())


def _least_gain(s: Situation, batch: int) -> float:
    """What is left of a gain at the worst: a step two deviations longer."""
    gain = _gain(s, batch)
    return gain.value / math.exp(2 * gain.error)


def _gain(s: Situation, batch: int) -> Estimate:
    longer = s.model.times_as_long(_layout(s, batch), s.layout)
    return Estimate(batch / s.layout.global_batch / longer.value * _worth(s, batch), longer.error)


def _throughput_gain(s: Situation, batch: int) -> float:
    return _gain(s, batch).value / _worth(s, batch)


def _worth(s: Situation, batch: int) -> float:
    return efficiency(batch, s.layout.global_batch, _noise(s, batch))


def _noise(s: Situation, batch: int) -> float:
    return doubted(s.noise_bounds, s.layout.global_batch, batch)


def _layout(s: Situation, batch: int) -> Layout:
    return replace(s.layout, global_batch=batch, num_passes=_num_passes(s, batch))


def _num_passes(s: Situation, batch: int) -> int:
    """Of the worker that tells: with uneven parts as many times those of now as the batch is larger."""
    if s.most_a_pass is None:
        return 1
    now, all_a_pass = s.layout, s.layout.num_workers * s.most_a_pass
    if now.num_passes == math.ceil(now.global_batch / all_a_pass):
        return math.ceil(batch / all_a_pass)
    return math.ceil(now.num_passes * batch / now.global_batch)
