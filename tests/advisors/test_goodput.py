"""The batch that makes the most progress a second: its bounds, its reasons, and what it leaves alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.advisors.test_throughput import Machine, layout
from workers.advisors.goodput import Change, Keep, Situation, advise, efficiency
from workers.advisors.throughput import fit

OVERHEAD = Machine(5e-3, 1e-5, 2e-3)
"""A step costs nearly the same however many samples it has."""

BUSY = Machine(1e-6, 1e-3, 1e-5)
"""A step costs in proportion to its samples."""


def situation(machine: Machine = OVERHEAD, batch: int = 32, noise: float = 1000.0, **changes: object) -> Situation:
    seen = sorted({max(8, batch // 2), batch})
    plain = Situation(
        layout=layout(2, batch),
        initial=32,
        most=512,
        largest_measured=batch,
        noise_bounds=(noise, noise),
        model=fit([machine.seen(layout(2, each)) for each in seen]),
        num_left=10**6,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_where_one_batch_was_seen_and_gradients_are_noisy_the_batch_doubles() -> None:
    advice = advise(situation(model=fit([OVERHEAD.seen(layout(2, 32))])))
    assert isinstance(advice, Change)
    assert advice.global_batch == 64
    assert advice.error > 0.2


def test_where_a_longer_leap_is_surely_better_it_is_taken_but_not_beyond_a_batch_that_did_not_pay() -> None:
    advice = advise(situation(most=10_000))
    assert isinstance(advice, Change)
    assert advice.global_batch == 128
    assert advice.expected_gain * math.exp(-2 * advice.error) > 2 * efficiency(64, 32, 1000.0)
    doubted = advise(situation(noise_bounds=(50.0, 1000.0)))
    assert isinstance(doubted, Change)
    assert doubted.global_batch == 64
    assert isinstance(advise(situation(refused={46: 1000.0, 64: 1000.0})), Keep)


def test_the_reason_tells_throughput_and_worth() -> None:
    advice = advise(situation(most=64))
    assert isinstance(advice, Change)
    assert advice.global_batch == 64
    assert advice.expected_gain == pytest.approx(2 * efficiency(64, 32, 1000.0), rel=0.1)
    assert "64 samples a step are expected to make progress 1.8" in advice.reason
    assert "noise scale at least 1000 samples" in advice.reason


def test_a_batch_grows_by_the_least_noise_scale_and_shrinks_by_the_most() -> None:
    grown, small = situation(BUSY, batch=512, noise_bounds=(20.0, 1e6)), situation(noise_bounds=(1.0, 1e6))
    assert isinstance(advise(grown), Keep)
    assert isinstance(advise(small), Keep)
    shrunk = advise(situation(BUSY, batch=512, noise_bounds=(0.0, 20.0)))
    assert isinstance(shrunk, Change)
    assert "noise scale at most 20 samples" in shrunk.reason


def test_where_gradients_agree_already_it_stays() -> None:
    assert isinstance(advise(situation(noise=1.0)), Keep)


def test_where_time_goes_with_the_samples_it_stays() -> None:
    advice = advise(situation(BUSY))
    assert isinstance(advice, Keep)
    assert "the least that is worth a change" in advice.reason


@pytest.mark.parametrize("num_passes", [2, 3])
def test_a_larger_batch_takes_as_many_times_the_passes_also_of_a_worker_with_a_larger_part(num_passes: int) -> None:
    there = replace(layout(2, 128), num_passes=num_passes)  # 96 of 128 samples in passes of 32, where even parts have 2
    model = fit([OVERHEAD.seen(replace(layout(2, 64), num_passes=-(-num_passes // 2))), OVERHEAD.seen(there)])
    advice = advise(situation(OVERHEAD, 128, layout=there, model=model, most_a_pass=32, initial=128, noise=3000.0))
    assert isinstance(advice, Keep), advice


def test_a_batch_that_grew_beyond_what_pays_shrinks_again_but_not_below_what_was_asked_for() -> None:
    advice = advise(situation(BUSY, batch=512, noise=20.0))
    assert isinstance(advice, Change)
    assert advice.global_batch == 32


def test_a_refused_batch_is_weighed_again_only_when_noise_has_grown() -> None:
    refused = {46: 1000.0, 64: 1000.0}
    assert isinstance(advise(situation(refused=refused)), Keep)
    assert isinstance(advise(situation(noise=1600.0, refused=refused)), Change)


def test_where_nothing_is_left_to_try_it_is_told_whether_bounds_or_trials_are_why() -> None:
    refused, bounded = advise(situation(refused={64: 1000.0, 46: 1000.0})), advise(situation(most=32))
    assert isinstance(refused, Keep)
    assert isinstance(bounded, Keep)
    assert "others did not pay (tried: 46, 64), and are tried again after some more steps" in refused.reason
    assert bounded.reason == "32 samples a step stay: no other batch lies within its bounds."


def test_what_lies_beyond_a_refused_batch_is_refused_with_it_in_either_direction() -> None:
    assert isinstance(advise(situation(refused={46: 1000.0})), Keep)
    short_of_it = advise(situation(refused={64: 1000.0}))
    assert isinstance(short_of_it, Change)
    assert short_of_it.global_batch == 46
    busy = situation(BUSY, batch=512, noise=20.0, refused={256: 20.0})
    less = advise(busy)
    assert isinstance(less, Change)
    assert 256 < less.global_batch < 512
    assert isinstance(advise(replace(busy, noise_bounds=(5.0, 5.0))), Change)


def test_the_end_of_a_job_is_left_alone() -> None:
    assert isinstance(advise(situation(num_left=32 * 50)), Keep)


@given(
    workers=st.integers(1, 7),
    batch=st.integers(32, 512),
    noise=st.floats(0.1, 1e6),
    most=st.integers(32, 600),
    fixed=st.floats(1e-5, 1e-1),
    sample=st.floats(1e-7, 1e-2),
)
@settings(max_examples=100, deadline=None)
def test_advice_never_leaves_the_bounds(
    workers: int, batch: int, noise: float, most: int, fixed: float, sample: float
) -> None:
    here, model = layout(workers, batch), fit([Machine(fixed, sample, 1e-3).seen(layout(workers, batch))])
    changed = {"layout": here, "largest_measured": batch, "model": model, "most": max(most, 32)}
    advice = advise(situation(noise=noise, **changed))
    if isinstance(advice, Change):
        assert 32 <= advice.global_batch <= max(most, 32)
        assert advice.global_batch >= workers
        assert advice.global_batch <= 4 * batch
        assert advice.global_batch != batch
        assert advice.expected_gain >= 1.05
