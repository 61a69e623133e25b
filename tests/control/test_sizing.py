"""Growing by itself: what pays is kept, what does not is given back, and noise makes nothing flap."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.control.elastic_job import BATCH, ElasticJob
from workers.control.sizing import MEMORY_S

HOUR_S = 3600.0


def linear(size: int) -> float:
    return 32.0 * size


def saturating(size: int) -> float:
    return 32.0 * min(size, 3)


def contended(size: int) -> float:
    return 32.0 * (1.0 if size == 1 else 0.6)


def test_a_job_that_scales_grows_to_all_the_room_by_doubling() -> None:
    job = ElasticJob(linear, room=lambda now_s: 8, num_samples=500_000).run()
    assert [size for _, size in job.sizes] == [2, 4, 8]
    assert [(found.before["workers"], found.after["workers"], found.verdict.is_kept) for found in job.judged] == [
        (1, 2, True),
        (2, 4, True),
        (4, 8, True),
    ]
    assert [found.verdict.gain for found in job.judged] == pytest.approx([2.0, 2.0, 2.0])
    assert [found.expected_gain for found in job.judged] == pytest.approx([2.0, 2.0, 2.0])


def test_a_job_that_saturates_gives_back_what_brings_nothing_and_does_not_try_it_again_soon() -> None:
    job = ElasticJob(saturating, room=lambda now_s: 8, num_samples=10**9).run(until_s=MEMORY_S)
    assert [size for _, size in job.sizes] == [2, 4, 8, 4]
    refused = job.judged[-1]
    assert (refused.after["workers"], refused.verdict.is_kept) == (8, False)
    assert "only 1.00 times as fast as 4 (expected: " in refused.told
    assert "1.00 times as fast as 4, and 1.05 is the least that is worth a change" in job.sizing.why


def test_a_job_that_more_workers_slow_down_stays_small() -> None:
    job = ElasticJob(contended, room=lambda now_s: 8, num_samples=10**9).run(until_s=MEMORY_S)
    assert [size for _, size in job.sizes] == [2, 1]


@pytest.mark.parametrize("seed", [3, 5, 10])
def test_noise_does_not_make_a_job_try_again_soon_what_it_has_just_given_back(seed: int) -> None:
    job = ElasticJob(lambda size: 32.0, room=lambda now_s: 2, num_samples=10**9, high=2, noise=0.1, seed=seed)
    job.run(until_s=2 * MEMORY_S - 50)
    assert ([size for _, size in job.sizes], len(job.judged)) == ([2, 1], 1)


def test_a_size_that_others_made_look_slow_is_tried_again_at_once_and_no_third_time() -> None:
    """The machine slows down while the size is on trial, which the smaller one shows when it is measured again."""
    job = ElasticJob(lambda size: 0.0, room=lambda now_s: 2, num_samples=10**9, high=2)
    job.speed = lambda size: 32.0 * size / (1 if not job.sizes else 2 if len(job.sizes) < 3 else 4)
    job.run(until_s=2 * MEMORY_S)
    assert [found.verdict.is_kept for found in job.judged] == [False, False]
    assert [size for _, size in job.sizes] == [2, 1, 2, 1]


def test_a_job_about_to_end_does_not_grow() -> None:
    job = ElasticJob(linear, room=lambda now_s: 8, num_samples=8 * BATCH).run()
    assert job.num_changes == 0
    assert "is the least that is worth a change" in job.sizing.why


def test_what_resizes_cost_is_measured() -> None:
    job = ElasticJob(linear, room=lambda now_s: 8, num_samples=10**9, delay_s=40.0, stall_s=3.0).run(until_s=600)
    assert job.sizing.stalls_s == pytest.approx((3.0, 3.0, 3.0))
    assert all(40.0 <= delay_s < 70.0 for delay_s in job.sizing.delays_s)


def test_what_was_measured_good_is_taken_again_as_soon_as_there_is_room_again() -> None:
    job = ElasticJob(linear, room=lambda now_s: 2 if 200 < now_s < 300 else 4, num_samples=10**9).run(until_s=400)
    assert [size for _, size in job.sizes] == [2, 4, 2, 4]
    assert "measured to be" in job.judged[-1].told or job.judged[-1].verdict.is_kept


SPEEDS = {"linear": linear, "saturating": saturating, "contended": contended, "flat": lambda size: 32.0}


@settings(max_examples=20, deadline=None)
@given(
    speed=st.sampled_from(sorted(SPEEDS)),
    noise=st.floats(0.0, 0.4),
    seed=st.integers(0, 2**32),
    low=st.integers(1, 2),
    high=st.integers(2, 8),
)
def test_noise_makes_nothing_flap(speed: str, noise: float, seed: int, low: int, high: int) -> None:
    job = ElasticJob(
        SPEEDS[speed],
        room=lambda now_s: high,
        num_samples=10**9,
        low=low,
        high=high,
        size=low,
        granted=low,
        noise=noise,
        seed=seed,
    ).run(until_s=HOUR_S)
    assert all(low <= size <= high for _, size in job.sizes)
    # Every size that fails is left alone for MEMORY_S, and each time for twice as long.
    num_tries = 1 + math.ceil(math.log2(1 + HOUR_S / MEMORY_S))
    assert job.num_changes <= 2 * num_tries * (high - low)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), noise=st.floats(0.0, 0.3), rooms=st.lists(st.integers(1, 8), min_size=2, max_size=8))
def test_nothing_is_asked_for_that_there_is_no_room_for(seed: int, noise: float, rooms: list[int]) -> None:
    job = ElasticJob(
        saturating, room=lambda now_s: rooms[int(now_s / 97) % len(rooms)], num_samples=10**9, noise=noise, seed=seed
    )
    job.run(until_s=1500)  # it asserts at every step
    assert job.num_changes > 0 or max(rooms) == 1


@pytest.mark.parametrize(("name", "least_speed_up"), [("linear", 5.0), ("saturating", 2.5), ("contended", 0.95)])
def test_growing_by_itself_pays_where_it_can_and_costs_little_where_it_cannot(name: str, least_speed_up: float) -> None:
    num_samples = 200_000
    grown = ElasticJob(SPEEDS[name], room=lambda now_s: 8, num_samples=num_samples, noise=0.1).run()
    assert num_samples / SPEEDS[name](1) > least_speed_up * grown.now_s
