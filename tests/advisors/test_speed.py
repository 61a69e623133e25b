"""What is learnt of one worker's speed, and when it is believed to have changed."""

from __future__ import annotations

import random

import pytest

from workers.advisors.cost_line import FORGET, CostLine
from workers.advisors.speed import NUM_SHIFTED, Speed


def lined(*seen: tuple[int, float]) -> CostLine:
    line = CostLine()
    for samples, seconds in seen:
        line = line.seen(samples, seconds)
    return line


def test_two_sizes_tell_the_fixed_part_from_that_of_a_sample_also_under_noise() -> None:
    rng = random.Random(0)
    seen = [(b, (0.2 + 0.01 * b) * rng.gauss(1.0, 0.02)) for b in [64] * 40 + [24] * 40]
    cost = lined(*seen).fitted()
    assert (cost.fixed_s, cost.sample_s) == (pytest.approx(0.2, rel=0.15), pytest.approx(0.01, rel=0.1))
    assert cost.seconds(24) == pytest.approx(0.44, rel=0.02)
    assert 0.001 < cost.error < 0.01


def test_one_size_tells_nothing_of_a_fixed_part() -> None:
    cost = lined(*[(64, 0.84)] * 10).fitted()
    assert (cost.fixed_s, cost.sample_s) == (pytest.approx(0.0, abs=1e-9), pytest.approx(0.84 / 64))


def test_neither_part_of_a_cost_is_below_nothing() -> None:
    falling = lined((64, 0.1), (32, 0.2)).fitted()
    assert falling.fixed_s > 0
    assert falling.sample_s > 0
    steep = lined((64, 1.0), (32, 0.1)).fitted()
    assert steep.fixed_s == 0


def test_the_line_forgets_by_its_factor() -> None:
    old, new = 1.0, 2.0
    line = lined((10, old), *[(10, new)] * 50)
    weight_old = FORGET**50
    weights = sum(FORGET**i for i in range(50)) + weight_old
    assert line.fitted().seconds(10) == pytest.approx((new * (weights - weight_old) + old * weight_old) / weights)


def seen(*seconds: float, samples: int = 64) -> Speed:
    speed = Speed()
    for one in seconds:
        speed = speed.seen(samples, one)
    return speed


def test_a_worker_that_slows_down_for_good_is_known_anew_and_one_that_stumbles_is_not() -> None:
    steady = [1.0] * 20
    assert seen(*steady, 1.5, 1.5).num_shifts == 0
    assert not seen(*steady, 1.5, 1.5).is_steady
    assert seen(*steady, 1.5, 1.5, 1.0).is_steady
    assert seen(*steady, 1.5, 0.7, 1.5, 0.7, 1.5).num_shifts == 0
    slowed = seen(*steady, *[1.5] * NUM_SHIFTED)
    assert (slowed.num_shifts, slowed.is_steady, slowed.level_s) == (1, True, 1.5)
    assert slowed.line.fitted().seconds(64) == pytest.approx(1.5)


def test_another_part_is_no_change_of_speed() -> None:
    speed = seen(*[1.0] * 20)
    for _ in range(20):
        speed = speed.seen(128, 1.6)  # 0.4 of each second does not depend on the part
    assert (speed.num_shifts, speed.is_steady) == (0, True)
    assert speed.line.fitted().fixed_s == pytest.approx(0.4, rel=0.1)
