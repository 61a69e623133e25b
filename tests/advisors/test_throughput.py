"""The throughput model: it finds what was put in, and says where it has seen nothing."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.advisors.throughput import Layout, Observation, fit


def layout(workers: int, batch: int, passes: int = 1, nodes: int = 1) -> Layout:
    return Layout(num_workers=workers, num_nodes=nodes, global_batch=batch, num_passes=passes)


class Machine:
    """Pollux's own formula, with parameters that nobody tells the fit."""

    def __init__(self, fixed: float, sample: float, sync: float, gamma: float = 2.0) -> None:
        self.fixed, self.sample, self.sync, self.gamma = fixed, sample, sync, gamma

    def times(self, of: Layout) -> tuple[float, float]:
        pass_s = self.fixed + self.sample * of.samples_a_pass
        sync_s = 0.0 if of.num_workers == 1 else self.sync * (1 + 0.3 * (of.num_workers - 2)) * of.num_nodes
        last_s = (pass_s**self.gamma + sync_s**self.gamma) ** (1 / self.gamma)
        return pass_s, (of.num_passes - 1) * pass_s + last_s

    def seen(self, of: Layout, rng: random.Random | None = None, noise: float = 0.0) -> Observation:
        pass_s, step_s = (t * math.exp(rng.gauss(0, noise) if rng else 0.0) for t in self.times(of))
        return Observation(layout=of, pass_s=pass_s, step_s=step_s, num_steps=40)


@given(fixed=st.floats(1e-4, 1e-2), sample=st.floats(1e-6, 1e-3), sync=st.floats(1e-4, 1e-2), gamma=st.floats(1.0, 8.0))
@settings(max_examples=60, deadline=None)
def test_steps_between_measured_batches_are_told_to_a_few_percent(
    fixed: float, sample: float, sync: float, gamma: float
) -> None:
    machine = Machine(fixed, sample, sync, gamma)
    model = fit([machine.seen(layout(2, batch)) for batch in (32, 64, 256)])
    for batch in (32, 45, 128, 256):
        told = model.step_s(layout(2, batch))
        assert told.value == pytest.approx(machine.times(layout(2, batch))[1], rel=0.08)


def test_the_error_bar_holds_the_truth_as_often_as_it_should() -> None:
    num_held = 0
    for seed in range(60):
        rng = random.Random(seed)
        machine = Machine(10 ** rng.uniform(-3, -2), 10 ** rng.uniform(-5, -4), 10 ** rng.uniform(-3.5, -2.5))
        model = fit([machine.seen(layout(2, batch), rng, 0.05) for batch in (32, 64, 128)])
        told = model.step_s(layout(2, 256))
        num_held += abs(math.log(told.value / machine.times(layout(2, 256))[1])) <= 2 * told.error
    assert num_held >= 54


def test_what_nobody_has_seen_is_told_with_a_wide_error() -> None:
    machine = Machine(2e-3, 1e-4, 3e-3)
    model = fit([machine.seen(layout(2, batch)) for batch in (32, 64, 128)])
    assert model.step_s(layout(2, 256)).error < 0.15
    assert model.step_s(layout(4, 128, nodes=2)).error > 0.4
    alone = fit([machine.seen(layout(1, batch)) for batch in (32, 64, 128)])
    assert alone.step_s(layout(1, 256)).error < 0.15
    assert alone.step_s(layout(2, 64)).error > 0.4


def test_what_was_measured_is_told_as_surely_as_it_was_measured() -> None:
    """One layout says nothing of what in its cost is fixed and what grows, and all of their sum."""
    machine = Machine(2e-3, 1e-4, 3e-3)
    model = fit([machine.seen(layout(2, 128))])
    assert model.step_s(layout(2, 128)).error < 0.08
    assert 0.1 < model.step_s(layout(1, 128)).error < 0.4  # a pass of twice the samples takes up to twice as long
    assert model.step_s(layout(2, 128, nodes=2)).error > 0.4


def test_more_passes_cost_what_they_cost() -> None:
    machine = Machine(2e-3, 1e-4, 3e-3)
    model = fit([machine.seen(layout(2, 64)), machine.seen(layout(2, 128)), machine.seen(layout(2, 256, passes=4))])
    told = model.step_s(layout(2, 512, passes=8)).value
    assert told == pytest.approx(machine.times(layout(2, 512, passes=8))[1], rel=0.1)
