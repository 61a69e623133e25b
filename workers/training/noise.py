"""The gradient noise scale: how large a global batch must be before averaging more samples stops paying. Pure.

B_simple = tr(Sigma) / |G|^2 (McCandlish et al. 2018, arXiv 1812.06162, app. A): Sigma the covariance of one
sample's gradient, G the true gradient. A round's n micro-batches j, of weights w_j that sum to W and with mean
gradients g_j, tell both without bias, however unequal they are:

    S  = (Lw - |g|^2) W / (n - 1)        Lw = sum_j (w_j / W) |g_j|^2,   g = sum_j (w_j / W) g_j
    G2 = (n |g|^2 - Lw) / (n - 1)

For equal weights it is the estimator of Pollux (OSDI '21); that one taken for unequal weights is wrong by its size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

MEMORY_ROUNDS = 500.0
MIN_MEMORY = 32.0
"""The average forgets over ``MEMORY_ROUNDS`` rounds, but never over fewer than ``MIN_MEMORY`` measurements."""

UNIT_RATE = 0.125
SAME_UNIT = 8.0
"""A round whose mean square is more than so many times that of late, or less than its share, is of another size."""

MAX_BATCHES = 1000.0
"""A noise scale above this many global batches cannot be told from one without a signal, and is told as this."""

NUM_DEVIATIONS = 2.0
NUM_TOO_FEW = 3.0
"""The spread of so few measurements does not tell how far their mean may be off."""

COST_SHARE = 0.008
"""Of the time; the rest of a hundredth is for what the clock does not see, such as caches that are cold after."""

MIN_INTERVAL, MAX_INTERVAL = 16, 512
_COST_RATE = 0.2
_EARLY_INTERVAL, _EARLY_GROWTH = 2, 4

_FIRST_SPLIT, SPLIT_INTERVAL = 16, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """``variance`` is tr(Sigma) of one unit of weight, ``signal`` |G|^2. Either may come out negative.

    ``mean_square`` is Lw, by whose size both count where rounds are averaged.
    """

    variance: float
    signal: float
    mean_square: float = 1.0


def estimate(weighted_squares: float, square: float, weight: float, num_pieces: int) -> Estimate:
    """One round's estimate from the sums over its ``num_pieces`` >= 2 micro-batches.

    ``weighted_squares`` is sum_j w_j |g_j|^2, ``square`` |g|^2 of the mean gradient, ``weight`` W.
    """
    assert num_pieces > 1
    mean_square = weighted_squares / weight
    return Estimate(
        variance=(mean_square - square) * weight / (num_pieces - 1),
        signal=(num_pieces * square - mean_square) / (num_pieces - 1),
        mean_square=mean_square,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Average:
    """Sums of what was measured, each of a weight that falls with its age; their ratio needs no other correction.

    They are in units of ``mean_square``, the one that rounds had of late when each was measured (0 before the first).
    ``variance_squares``, ``products`` and ``signal_squares`` are those of variance times variance, variance times
    signal and signal times signal. ``num_measured`` is the sum of the weights; ``cost`` is what a measurement takes of
    its round, as a part of a round without one; ``next_round`` is the first round to be measured.
    """

    mean_square: float = 0.0
    variance: float = 0.0
    signal: float = 0.0
    variance_squares: float = 0.0
    products: float = 0.0
    signal_squares: float = 0.0
    is_preconditioned: float = 0.0
    num_measured: float = 0.0
    measured_round: float = 0.0
    cost: float = 0.0
    next_round: float = float(_EARLY_INTERVAL)


class NoiseScale:
    """A ``StepState``: the average over measured rounds, and which round is measured next; alike on all ranks.

    Variance and signal are averaged apart, since the mean of ratios is not the ratio of means; each in units of the
    mean square that the rounds before had. Gradients shrink by orders of magnitude as a job learns, so that a plain
    mean would tell of the first rounds alone; a round's own mean square errs with what it divides, and makes the ratio
    too large, by a tenth where gradients have few independent directions. It is taken only where a round is of another
    size, as where a parameter gets a gradient for the first time, out of all proportion to its second moment.
    """

    def __init__(self) -> None:
        self._held = _Average()
        self._staged: _Average | None = None

    def is_due(self, round: int) -> bool:
        """Whether this round (counted from 1) is one to measure."""
        return round >= self._held.next_round

    @property
    def average(self) -> Estimate | None:
        """The means of variance and signal, of one sample, in mean squares; None before the first measurement."""
        held = self._held
        if held.num_measured == 0.0:
            return None
        return Estimate(variance=held.variance / held.num_measured, signal=held.signal / held.num_measured)

    def value(self, batch_samples: float) -> float | None:
        """The noise scale in samples, from 0 to ``MAX_BATCHES`` batches of this size; None while nothing is known."""
        variance, signal = self._held.variance, self._held.signal
        if variance <= 0.0:
            return 0.0 if signal > 0.0 else None
        return variance / max(signal, variance / (MAX_BATCHES * batch_samples))

    def bounds(self, batch_samples: float) -> tuple[float, float] | None:
        """What the noise scale is at least and at most, as ``value`` tells it; None while too little was measured.

        It is signal / variance that errs evenly, so that there is a least noise scale, too, where the signal comes out
        below zero.
        """
        held, count = self._held, self._held.num_measured
        if count <= NUM_TOO_FEW or (held.variance <= 0.0 and held.signal <= 0.0):
            return None
        if held.variance <= 0.0:
            return 0.0, 0.0
        ratio = held.signal / held.variance
        # Of signal - ratio * variance, which is 0 in the mean.
        squares = held.signal_squares - 2 * ratio * held.products + ratio * ratio * held.variance_squares
        doubt = NUM_DEVIATIONS * (max(0.0, squares) / (1.0 - 1.0 / count)) ** 0.5 / held.variance
        least_ratio = 1.0 / (MAX_BATCHES * batch_samples)
        return 1.0 / max(max(0.0, ratio) + doubt, least_ratio), 1.0 / max(ratio - doubt, least_ratio)

    def stage(self, round: int, found: Estimate | None, *, is_preconditioned: bool, cost: float | None) -> None:
        """Take a measured round's estimate, its variance that of a sample.

        ``found`` is None where the round told nothing; ``cost`` is what a measurement took of a round on average
        over ranks, None while not known.
        """
        held = self._held
        if cost is not None:
            held = replace(held, cost=cost if held.cost == 0.0 else held.cost + _COST_RATE * (cost - held.cost))
        if found is not None and found.mean_square > 0.0 and _is_finite(found):
            held = _with(held, found, round, float(is_preconditioned))
        self._staged = replace(held, next_round=float(round + _interval(held.cost, round)))

    def commit(self) -> None:
        if self._staged is not None:
            self._held = self._staged
        self._staged = None

    def rollback(self) -> None:
        self._staged = None

    def state(self) -> dict[str, float]:
        """What a checkpoint or a newcomer needs."""
        return asdict(self._held)

    def load(self, state: Mapping[str, float] | None) -> None:
        """Go on from ``state``; afresh where it lacks what is kept now, as in a checkpoint of an older version."""
        known = {field.name for field in fields(_Average)}
        told = {name: value for name, value in (state or {}).items() if name in known}
        self._held = _Average(**told) if len(told) == len(known) else _Average()
        self._staged = None


def _is_finite(found: Estimate) -> bool:
    return math.isfinite(found.variance) and math.isfinite(found.signal) and math.isfinite(found.mean_square)


def splits(round: int) -> bool:
    """Whether this round is cut otherwise than by speed, so that there are parts to compare.

    A worker that would compute the whole batch in one pass does so in two, and batches by length are dealt at random.
    A function of the round alone: it changes how sums are rounded, and what a job comes to must not hang on what the
    clock measured.
    """
    if round < SPLIT_INTERVAL:
        return round >= _FIRST_SPLIT and round.bit_count() == 1
    return round % SPLIT_INTERVAL == 0


def _with(held: _Average, found: Estimate, round: int, is_preconditioned: float) -> _Average:
    if is_preconditioned != held.is_preconditioned:  # of another measure, so not to be averaged with it
        held = _Average(cost=held.cost, measured_round=held.measured_round)
    age = round - held.measured_round
    kept = math.exp(-min(age / MEMORY_ROUNDS, 1.0 / MIN_MEMORY))
    of_late, own = held.mean_square, found.mean_square
    is_same = of_late / SAME_UNIT <= own <= of_late * SAME_UNIT
    unit = of_late if is_same else own
    variance, signal = found.variance / unit, found.signal / unit
    return replace(
        held,
        mean_square=unit + UNIT_RATE * (own - unit),
        variance=kept * held.variance + variance,
        signal=kept * held.signal + signal,
        variance_squares=kept * held.variance_squares + variance * variance,
        products=kept * held.products + variance * signal,
        signal_squares=kept * held.signal_squares + signal * signal,
        num_measured=kept * held.num_measured + 1.0,
        measured_round=float(round),
        is_preconditioned=is_preconditioned,
    )


def _interval(cost: float, round: int) -> int:
    """Rounds until the next measurement: dense at first, then such that ``COST_SHARE`` of the time goes into it."""
    wanted = min(MAX_INTERVAL, max(MIN_INTERVAL, math.ceil(cost / COST_SHARE)))
    return max(min(wanted, max(_EARLY_INTERVAL, round // _EARLY_GROWTH)), wanted // _EARLY_GROWTH)
