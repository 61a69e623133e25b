"""When a gain may be believed at once, and what one is worth between two stretches without what brought it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.advisors.judging import MAX_JUDGE_STEPS, Rate, Verdict
from workers.advisors.turning import (
    LARGE_GAIN,
    MOST_FORESEEN,
    drift_in_words,
    is_open,
    is_proven,
    is_sure,
    judge_between,
)

LEAST = 1.02


def rate(samples_per_s: float, error: float = 0.0) -> Rate:
    return Rate(samples_per_s=samples_per_s, error=error, num_steps=10)


@pytest.mark.parametrize(
    ("gain", "expected", "is_kept", "sure"),
    [
        (4.8, 4.4, True, True),
        (6.4, 4.0, True, True),
        (4.8, 2.3, True, False),  # more than was foreseen: some of it may be the link's
        (2.6, 4.4, True, False),  # or all of it
        (1.3, 1.3, True, False),  # a link may be so much faster at any time
        (0.9, 1.3, False, False),
        (2.4, 2.4, True, False),
        (LARGE_GAIN, LARGE_GAIN / MOST_FORESEEN, True, True),
    ],
)
def test_a_gain_is_believed_at_once_where_it_is_large_and_as_foreseen(
    gain: float, expected: float, is_kept: bool, sure: bool
) -> None:
    verdict = Verdict(gain=gain, is_kept=is_kept)
    assert is_sure(verdict, expected, is_link_faster=False) is sure
    assert not is_sure(verdict, expected, is_link_faster=True)


def test_over_a_steady_link_the_mean_of_both_stretches_is_what_counts() -> None:
    for now, is_kept in ((104.0, True), (100.0, False)):
        verdict = judge_between(rate(99.0, 0.02), rate(now), rate(101.0, 0.02), LEAST)
        assert verdict is not None
        assert (verdict.gain, verdict.is_kept) == (pytest.approx(now / 100.0, rel=1e-3), is_kept)


@pytest.mark.parametrize("drift", [1.11, 1.43, 2.2, 1 / 1.11, 1 / 1.43, 1 / 2.2])
@pytest.mark.parametrize("gain", [0.5, 0.95, 1.1, 1.6, 4.0])
@pytest.mark.parametrize("is_early", [True, False])
def test_a_link_that_changed_at_any_time_of_a_trial_turns_no_verdict(drift: float, gain: float, is_early: bool) -> None:
    """It may be left open, and is not where the gain is more than what changed, or a loss grows with it."""
    now = 100.0 * gain * (drift if is_early else 1.0)
    verdict = judge_between(rate(100.0), rate(now), rate(100.0 * drift), LEAST)
    if verdict is not None:
        assert verdict.is_kept is (gain >= LEAST)
    span = max(drift, 1 / drift)
    if gain / span >= LEAST or gain * span < LEAST:
        assert verdict is not None


@given(
    st.floats(50.0, 200.0), st.floats(50.0, 200.0), st.floats(50.0, 200.0), st.floats(0.0, 0.1), st.floats(0.97, 1.05)
)
def test_what_is_kept_was_worth_it_over_either_stretch_or_over_their_mean(
    before: float, now: float, again: float, error: float, least: float
) -> None:
    verdict = judge_between(rate(before, error), rate(now), rate(again, error), least)
    ratios = (now / before, now / again)
    if verdict is None:
        assert min(ratios) < least <= max(ratios)
        return
    assert min(ratios) * 0.999 <= verdict.gain <= max(ratios) * 1.001
    assert verdict.is_kept is (verdict.gain >= least)


def test_what_changed_meanwhile_is_told_in_words() -> None:
    assert drift_in_words(rate(100.0), rate(143.0)) == "1.43 times as fast"
    assert drift_in_words(rate(100.0), rate(50.0)) == "2.00 times as slow"


@pytest.mark.parametrize(
    ("now", "error", "is_still_open", "is_shown"),
    [(103.0, 0.02, True, False), (103.0, 0.001, False, True), (140.0, 0.05, False, True), (95.0, 0.001, False, False)],
)
def test_a_gain_within_noise_is_waited_for_and_not_believed(
    now: float, error: float, is_still_open: bool, is_shown: bool
) -> None:
    stretches = (rate(100.0, error), rate(now, error), rate(100.0, error), 1.02)
    assert is_open(*stretches) is is_still_open
    assert is_proven(*stretches) is is_shown
    enough = replace(stretches[2], num_steps=MAX_JUDGE_STEPS)
    assert not is_open(*stretches[:2], enough, 1.02)
