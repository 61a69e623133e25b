"""What gradients in four bits cost in loss: less than another seed does, where a scheme known to be bad shows."""

from __future__ import annotations

import math
from statistics import mean, stdev

import pytest

from tests.benchmarks.compression_loss import in_figures, interval
from tests.benchmarks.compression_training import CONTROL, Setting, train

STEPS, SEEDS = 300, 3


def test_int4_ends_within_the_spread_of_seeds_and_signs_do_not() -> None:
    settings = [Setting(recipe="digits", optimizer="adamw", steps=STEPS, seed=seed) for seed in range(SEEDS)]
    losses = {name: [train(setting, name) for setting in settings] for name in ("none", "int4", CONTROL)}
    spread = stdev(losses["none"])
    costs = {name: mean(a - b for a, b in zip(own, losses["none"], strict=True)) for name, own in losses.items()}
    assert abs(costs["int4"]) < 2 * spread < costs[CONTROL], (costs, spread)


def test_an_interval_is_student_s() -> None:
    assert interval([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.776 * (2.5 / 5) ** 0.5, rel=1e-3)


def test_seeds_that_diverge_are_counted_and_in_no_mean() -> None:
    assert in_figures([2.0, math.nan, 3.0], [1.0, 1.0, 1.0]).startswith("loss 2.5000, +1.5000 ±")
    assert in_figures([2.0, math.nan, 3.0], [1.0, 1.0, 1.0]).endswith("n=2, 1 diverged)")
    assert in_figures([math.nan, math.inf, 3.0], [1.0, 1.0, 1.0]) == "n=1, 2 diverged"
