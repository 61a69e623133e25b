"""The noise scale over many rounds: its average, its bounds, and how often it is measured."""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import deepcopy
from statistics import median

import numpy as np
import pytest

from workers.training import noise
from workers.training.noise import Estimate, NoiseScale, estimate


def told_of(rounds: Iterable[Estimate], interval: int = 1) -> NoiseScale:
    """What measurements come to that are so many rounds apart."""
    scale = NoiseScale()
    for number, found in enumerate(rounds, start=1):
        scale.stage(number * interval, found, is_preconditioned=False, cost=None)
        scale.commit()
    return scale


def drawn(noise_scale: float, batch: int, dimension: int, count: int, seed: int) -> list[Estimate]:
    """Estimates of rounds in which two workers halve a batch, their gradients of so many independent values."""
    draw = np.random.default_rng(seed)
    mean_D = np.full(dimension, dimension**-0.5)
    deviation = math.sqrt(noise_scale / dimension / (batch / 2))
    parts_N2D = mean_D + draw.normal(0, deviation, (count, 2, dimension))
    squares_N, wholes_N = (parts_N2D**2).sum(2).sum(1) * batch / 2, (parts_N2D.mean(1) ** 2).sum(1)
    return [estimate(float(s), float(w), batch, 2) for s, w in zip(squares_N, wholes_N, strict=True)]


@pytest.mark.parametrize(("noise_scale", "batch", "dimension"), [(64.0, 128, 5), (32.0, 32, 10), (8.0, 32, 5)])
def test_the_average_of_many_rounds_has_no_bias_however_few_directions_gradients_have(
    noise_scale: float, batch: int, dimension: int
) -> None:
    found = [told_of(drawn(noise_scale, batch, dimension, 500, seed)).average for seed in range(100)]
    sums = [(each.variance, each.signal) for each in found if each is not None]
    variance, signal = (sum(column) for column in zip(*sums, strict=True))
    assert variance / signal == pytest.approx(noise_scale, rel=0.02)


@pytest.mark.parametrize(("count", "interval"), [(4, 1), (6, 4), (20, 4), (20, 128)])
@pytest.mark.parametrize("noise_scale", [20.0, 2000.0])
def test_the_bounds_hold_the_noise_scale_however_little_was_measured(
    noise_scale: float, count: int, interval: int
) -> None:
    found = [told_of(drawn(noise_scale, 32, 40, count, seed), interval).bounds(32) for seed in range(300)]
    bounds = [each for each in found if each is not None]
    assert len(bounds) == 300
    assert sum(least <= noise_scale for least, _ in bounds) > 0.9 * 300
    assert sum(noise_scale <= most for _, most in bounds) > 0.9 * 300
    assert all(0.0 < least <= most <= 32 * noise.MAX_BATCHES for least, most in bounds)


def test_bounds_draw_together_with_what_is_measured_and_there_is_a_least_where_the_signal_is_below_zero() -> None:
    def width(count: int) -> float:
        found = [told_of(drawn(60.0, 32, 40, count, seed), 4).bounds(32) for seed in range(20)]
        return median(1.0 / each[0] - 1.0 / each[1] for each in found if each is not None)

    assert width(60) == pytest.approx(width(6) / 10**0.5, rel=0.3)
    without = told_of([Estimate(variance=20.0, signal=0.1 * (-1) ** n - 0.02) for n in range(12)])
    assert without.value(32) == 32 * noise.MAX_BATCHES
    assert without.bounds(32) == (pytest.approx(20.0 / (0.2 / 11**0.5), rel=0.1), 32 * noise.MAX_BATCHES)


def test_a_few_measurements_have_no_bounds_and_those_of_an_older_checkpoint_are_not_gone_on_with() -> None:
    rounds = drawn(60.0, 32, 40, 4, 0)
    assert [told_of(rounds[:count]).bounds(32) is None for count in range(5)] == [True] * 4 + [False]
    older = told_of(rounds).state()
    del older["signal_squares"]
    scale = NoiseScale()
    scale.load(older)
    assert scale.value(32) is None
    assert told_of([Estimate(variance=0.0, signal=1.0)] * 4).bounds(32) == (0.0, 0.0)


def test_what_cannot_be_measured_is_told_as_a_bound_or_not_at_all() -> None:
    def of(variance: float, signal: float) -> float | None:
        scale = NoiseScale()
        scale.stage(2, Estimate(variance=variance, signal=signal), is_preconditioned=False, cost=None)
        scale.commit()
        return scale.value(8)

    assert NoiseScale().value(8) is None
    assert of(6.0, 2.0) == 3.0
    assert of(6.0, -2.0) == of(6.0, 0.0) == 8 * noise.MAX_BATCHES
    assert of(-1e-9, 2.0) == 0.0
    assert of(0.0, 0.0) is None
    assert of(math.nan, 2.0) is None
    assert of(1.0, math.inf) is None


@pytest.mark.parametrize(("cost", "interval"), [(0.001, 16), (0.08, 16), (0.2, 25), (1.0, 125), (50.0, 512)])
def test_measuring_takes_less_than_a_hundredth_of_the_time(cost: float, interval: int) -> None:
    scale, measured = NoiseScale(), []
    for round in range(1, 10_000):
        if scale.is_due(round):
            scale.stage(round, None, is_preconditioned=False, cost=cost)
            scale.commit()
            measured.append(round)
    assert measured[-1] - measured[-2] == interval
    if cost < 0.1:
        assert len([round for round in measured if round <= 30]) >= 7  # so that a short job learns something too
    assert len(measured) * cost / 10_000 <= 0.01 or interval == noise.MAX_INTERVAL


def test_measures_of_two_kinds_are_not_averaged() -> None:
    scale = NoiseScale()
    for round, is_preconditioned in ((2, False), (4, False), (6, True)):
        found = Estimate(variance=2.0 * round, signal=1.0)
        scale.stage(round, found, is_preconditioned=is_preconditioned, cost=None)
        scale.commit()
    assert scale.average == Estimate(variance=12.0, signal=1.0)
    other = NoiseScale()
    other.load(deepcopy(scale.state()))
    assert other.average == scale.average


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_a_round_whose_gradients_are_of_another_size_counts_as_much_as_any_other(factor: float) -> None:
    scale = NoiseScale()
    # Two micro-batches of 4 with signal 1 and variance 8 a sample, all of it scaled: mean square 1 + 8 * 2 / 8 = 3.
    for number, size in enumerate([1.0] * 4 + [factor] + [1.0] * 5, start=1):
        found = Estimate(variance=8.0 * size, signal=size * (1.0 if size == 1.0 else 3.0), mean_square=3.0 * size)
        scale.stage(number, found, is_preconditioned=False, cost=None)
        scale.commit()
    assert scale.value(8) == pytest.approx(8.0 / 1.2, rel=0.05)
