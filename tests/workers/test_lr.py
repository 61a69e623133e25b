"""The learning-rate plan: driven by samples, so that another batch size changes neither start, peak nor end."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.lr import Decay, LrPlan, LrRule, gain

BATCH = 10
TOTAL = 1000


def rates(plan: LrPlan, total: int = TOTAL, batch: int = BATCH) -> list[float]:
    return [plan.at(cursor, total, batch) for cursor in range(0, total, batch)]


plans = st.builds(
    LrPlan,
    lr=st.floats(1e-6, 1e2),
    base_batch=st.integers(1, 4096),
    rule=st.sampled_from(LrRule),
    warmup_fraction=st.floats(0.0, 0.99),
    decay=st.sampled_from(Decay),
)


@given(plan=plans, total=st.integers(1, 10**9), cursor=st.integers(0, 10**9), batch=st.integers(1, 10**5))
def test_a_rate_is_never_negative_nor_above_the_scaled_one(plan: LrPlan, total: int, cursor: int, batch: int) -> None:
    ratio = batch / plan.base_batch
    scale = {LrRule.NONE: 1.0, LrRule.LINEAR: ratio, LrRule.SQRT: math.sqrt(ratio), LrRule.ADASCALE: min(1.0, ratio)}
    assert 0.0 <= plan.at(min(cursor, total - 1), total, batch) <= plan.lr * scale[plan.rule] * (1 + 1e-9)


@given(plan=plans)
def test_it_rises_to_its_peak_and_never_rises_after(plan: LrPlan) -> None:
    seen = rates(plan)
    peak = seen.index(max(seen))
    assert seen[: peak + 1] == sorted(seen[: peak + 1])
    assert seen[peak:] == sorted(seen[peak:], reverse=True)


@given(plan=plans)
def test_every_step_moves(plan: LrPlan) -> None:
    assert min(rates(plan)) > 0


def test_a_warm_up_is_linear_and_ends_at_the_peak() -> None:
    plan = LrPlan(lr=1.0, base_batch=BATCH, warmup_fraction=0.1, decay=Decay.CONSTANT)
    assert rates(plan)[:12] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0])


@given(plan=plans, other=plans, cursor=st.integers(0, TOTAL - 1), batch=st.integers(1, 100))
def test_a_rate_that_rises_later_begins_near_the_last_and_is_the_new_one_after_a_warm_up(
    plan: LrPlan, other: LrPlan, cursor: int, batch: int
) -> None:
    last, whole = plan.at(cursor, TOTAL, BATCH), other.at(cursor, TOTAL, batch)
    eased = other.eased(last, cursor, TOTAL, batch)
    samples = round(other.warmup_fraction * TOTAL)
    assert eased.at(cursor + samples, 10 * TOTAL, batch) == other.at(cursor + samples, 10 * TOTAL, batch)
    first = eased.at(cursor, TOTAL, batch)
    if whole <= last or samples == 0:
        assert (eased, first) == (other, whole)
    else:
        share = min(1.0, batch / samples)
        assert first == pytest.approx(last + share * (whole - last))


def test_a_rate_that_rises_by_the_noise_is_warmed_up_as_well() -> None:
    plan = LrPlan(lr=1.0, base_batch=BATCH, rule=LrRule.ADASCALE, warmup_fraction=0.1, decay=Decay.CONSTANT)
    cursor, total, noise = 50 * TOTAL, 100 * TOTAL, 1e5
    last, whole = (plan.at(cursor, total, times * BATCH, noise) for times in (1, 8))
    eased = plan.eased(last, cursor, total, 8 * BATCH, noise, most_samples=80 * BATCH)
    assert whole > 7 * last
    assert eased.at(cursor, total, 8 * BATCH, noise) == pytest.approx(last + 0.1 * (whole - last))


def test_without_warm_up_the_first_step_has_the_whole_rate() -> None:
    for decay in Decay:
        assert LrPlan(lr=0.5, base_batch=BATCH, warmup_fraction=0.0, decay=decay).at(0, TOTAL, BATCH) == 0.5


@pytest.mark.parametrize("decay", [Decay.COSINE, Decay.LINEAR])
def test_a_decay_is_that_of_torch(decay: Decay) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    steps = TOTAL // BATCH
    scheduler = (
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        if decay is Decay.COSINE
        else torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    )
    expected = []
    for _ in range(steps):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    plan = LrPlan(lr=0.3, base_batch=BATCH, warmup_fraction=0.0, decay=decay)
    assert rates(plan) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("rule", "factor"), [(LrRule.NONE, 1.0), (LrRule.LINEAR, 4.0), (LrRule.SQRT, 2.0)])
def test_the_rate_follows_the_batch_by_its_rule(rule: LrRule, factor: float) -> None:
    plan = LrPlan(lr=0.1, base_batch=32, rule=rule, warmup_fraction=0.0, decay=Decay.CONSTANT)
    assert plan.at(0, TOTAL, 128) == pytest.approx(0.1 * factor)
    assert plan.at(0, TOTAL, 32) == pytest.approx(0.1)


@given(noise=st.none() | st.floats(0, 1e9), base=st.integers(1, 1000), batch=st.integers(1, 100_000))
def test_a_gain_lies_between_one_step_and_as_many_as_the_samples_are(
    noise: float | None, base: int, batch: int
) -> None:
    low, high = sorted((1.0, batch / base))
    assert low * (1 - 1e-9) <= gain(noise, base, batch) <= high * (1 + 1e-9)
    counted = LrPlan(lr=1.0, base_batch=base, rule=LrRule.ADASCALE).counted(batch, noise)
    assert min(base, batch) * (1 - 1e-9) <= counted <= batch


def test_a_gain_is_that_of_the_paper() -> None:
    variance, square, base, batch = 6.0, 0.5, 4, 32  # of one sample's gradient, and |G|^2
    small, scale = variance / base, batch / base
    assert gain(variance / square, base, batch) == pytest.approx((small + square) / (small / scale + square))
    assert gain(0.0, base, batch) == gain(None, base, batch) == 1.0


@given(decay=st.sampled_from(Decay), cursor=st.integers(0, 999_990))
def test_a_change_of_the_batch_keeps_the_place_in_the_schedule(decay: Decay, cursor: int) -> None:
    """By as much as the schedule moves within the larger batch."""
    plan = LrPlan(lr=1.0, base_batch=1, rule=LrRule.NONE, warmup_fraction=0.1, decay=decay)
    small, large = (plan.at(cursor, 1_000_000, batch) for batch in (1, 10))
    assert small == pytest.approx(large, abs=10 / 100_000)
