"""How many workers to ask for, case by case; ``tests/control/test_sizing.py`` plays whole jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workers.advisors.judging import Rate
from workers.advisors.scaling import REST_S, SURE, Change, Keep, Situation, advise, predict
from workers.advisors.throughput import Estimate


def rate(samples_per_s: float, error: float = 0.0, num_steps: int = 50) -> Rate:
    return Rate(samples_per_s=samples_per_s, error=error, num_steps=num_steps)


AT_TWO = Situation(
    num_workers=2, num_offered=8, rates={2: rate(200.0)}, num_left=200_000, since_change_s=60.0, stalls_s=(0.5,)
)


def test_a_size_that_was_never_tried_is_hoped_to_scale_and_reached_by_doubling() -> None:
    advice = advise(AT_TWO)
    assert isinstance(advice, Change)
    assert (advice.num_workers, advice.expected_gain) == (4, 2.0)
    assert advice.reason == "4 workers are expected to be 2.00 times as fast as 2 and to save 490 s of 1000 s"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_offered": 2}, "no room"),
        ({"rates": {}}, "is being measured"),
        ({"rates": {2: rate(200.0, num_steps=2)}}, "is being measured"),
        ({"since_change_s": REST_S / 2}, "is being measured"),
        ({"rates": {1: rate(190.0), 2: rate(200.0), 4: rate(201.0)}}, "is the least that is worth a change"),
        ({"num_left": 5_000}, "would save 2 s of the 25 s left"),
        ({"num_left": 1_000}, "would save 0 s of the 5 s left"),
        ({"stalls_s": (400.0,)}, "800 s is the least that is worth a change"),
        ({"foreseen": {3: Estimate(1.04, 0.1), 4: Estimate(0.9, 0.1)}}, "1.04 (0.85 to 1.27) times as fast as 2, and"),
        ({"refused": {3: 700.0}}, "to 3: that did not pay, and is tried again in 700 s at the soonest"),
        ({"num_left": 40_000, "delays_s": (195.0,)}, "would save 2 s of the 200 s left"),
    ],
)
def test_it_stays_and_says_why(change: dict[str, object], words: str) -> None:
    advice = advise(replace(AT_TWO, **change))  # type: ignore[arg-type]  # fields by name
    assert isinstance(advice, Keep)
    assert words in advice.reason


def test_what_was_measured_beats_what_is_expected() -> None:
    advice = advise(replace(AT_TWO, rates={2: rate(200.0), 3: rate(290.0), 4: rate(210.0)}, num_offered=4))
    assert isinstance(advice, Change)
    assert (advice.num_workers, advice.expected_gain) == (3, 1.45)
    assert "measured" in advice.reason


@pytest.mark.parametrize(
    ("foreseen", "refused", "size", "gain", "words"),
    [
        (
            {3: 1.4, 4: 1.3},
            {},
            3,
            1.4,
            "3 workers are expected by the model of its steps to be 1.40 (1.15 to 1.71) times",
        ),
        ({3: 1.4, 4: 1.3}, {4: 9.0}, 3, 1.4, "by the model"),
        ({}, {4: 9.0}, 3, 1.5, "3 workers are expected to be 1.50 times as fast as 2"),
    ],
)
def test_the_model_of_its_steps_tells_what_to_expect_and_what_did_not_pay_is_passed_over(
    foreseen: dict[int, float], refused: dict[int, float], size: int, gain: float, words: str
) -> None:
    told = {n: Estimate(value, 0.1) for n, value in foreseen.items()}
    advice = advise(replace(AT_TWO, foreseen=told, refused=refused))
    assert isinstance(advice, Change)
    assert (advice.num_workers, advice.expected_gain) == (size, gain)
    assert words in advice.reason


def test_a_model_that_is_not_sure_does_not_keep_a_job_from_trying() -> None:
    advice = advise(replace(AT_TWO, foreseen={n: Estimate(0.9, 1.01 * SURE) for n in (3, 4)}))
    assert isinstance(advice, Change)
    assert (advice.num_workers, advice.expected_gain) == (4, 2.0)


MANY = Situation(
    num_workers=20,
    num_offered=40,
    rates={20: rate(1000.0)},
    num_left=None,
    since_change_s=60.0,
    foreseen={n: Estimate(1.0 + 0.001 * (n - 20), 0.05) for n in (16, 25, 30, 36, 45, 128)},
)


def test_sizes_between_those_that_are_foreseen_are_no_leap_in_the_dark() -> None:
    advice = advise(MANY)
    assert isinstance(advice, Keep)
    assert "does not grow to 40: expected by the model of its steps to be 1.02" in advice.reason
    grows = advise(replace(MANY, num_offered=24, foreseen={25: Estimate(1.25, 0.05)}))
    assert isinstance(grows, Change)
    assert (grows.num_workers, grows.expected_gain) == (24, pytest.approx(1.2))


def test_a_size_that_was_measured_long_ago_is_tried_again_whatever_the_model_tells_of_those_around_it() -> None:
    advice = advise(replace(MANY, tried=frozenset({20, 33})))
    assert isinstance(advice, Change)
    assert (advice.num_workers, advice.expected_gain) == (33, pytest.approx(1.65))


@pytest.mark.parametrize(
    ("measured", "size", "expected"),
    [
        ({1: 100.0}, 4, 400.0),
        ({1: 100.0, 2: 200.0}, 4, 400.0),
        ({1: 100.0, 2: 100.0}, 4, 100.0),
        ({1: 100.0, 2: 90.0}, 4, 90.0),
        ({1: 100.0, 2: 300.0}, 4, 600.0),
        ({1: 100.0, 2: 160.0}, 4, 1 / (0.0025 + 0.0075 / 4)),
        ({2: 100.0, 4: 100.0, 1: 50.0}, 3, 100.0),
        ({2: 100.0, 4: 120.0}, 4, 120.0),
    ],
)
def test_speed_is_predicted_by_amdahls_law_through_the_nearest_sizes(
    measured: dict[int, float], size: int, expected: float
) -> None:
    assert predict({n: rate(value) for n, value in measured.items()}, size) == pytest.approx(expected)
