"""How many workers to ask for, case by case; ``tests/control/test_sizing.py`` plays whole jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workers.advisors.judging import Rate
from workers.advisors.scaling import REST_S, Change, Keep, Situation, advise, predict


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
