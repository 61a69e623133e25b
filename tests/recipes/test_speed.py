"""Measuring the speed of a bare loop."""

from __future__ import annotations

from workers.recipes.digits import build
from workers.recipes.speed import NUM_STRETCHES, STRETCH_S, measure


def test_speed_is_samples_over_the_time_of_the_best_stretch() -> None:
    task = build({"hidden": 8, "layers": 1})
    reads = iter(range(10_000))
    # Each look at the clock is a tenth of a second later: a batch takes one look, a stretch begins and ends with one.
    rate = measure(task, 10, now=lambda: next(reads) / 10)
    looks = STRETCH_S * 10
    assert 10 * (looks - 1) / (STRETCH_S + 0.2) <= rate <= 10 * looks / STRETCH_S
    assert NUM_STRETCHES > 1
