"""Whether a change paid: as soon as noise allows, and by progress."""

from __future__ import annotations

import pytest

from workers.advisors.judging import JUDGE_STEPS, MAX_JUDGE_STEPS, Rate, judge, rate_of


def rate(samples_per_s: float, error: float, num_steps: int = 50) -> Rate:
    return Rate(samples_per_s=samples_per_s, error=error, num_steps=num_steps)


@pytest.mark.parametrize(
    ("now", "is_kept"),
    [
        (rate(150.0, 0.01, JUDGE_STEPS), True),
        (rate(150.0, 0.01, JUDGE_STEPS - 1), None),
        (rate(100.0, 0.01, JUDGE_STEPS), False),
        (rate(108.0, 0.05, JUDGE_STEPS), None),
        (rate(108.0, 0.05, MAX_JUDGE_STEPS), True),
        (rate(103.0, 0.05, MAX_JUDGE_STEPS), False),
        (None, None),
    ],
)
def test_a_change_is_judged_once_noise_allows_it(now: Rate | None, is_kept: bool | None) -> None:
    verdict = judge(rate(100.0, 0.01), now, least_gain=1.05)
    assert (None if verdict is None else verdict.is_kept) is is_kept


def test_a_step_that_waited_spoils_no_rate() -> None:
    steady = rate_of((100.0,) * 20)
    disturbed = rate_of((100.0,) * 19 + (1.0,))
    assert steady == disturbed


def test_a_batch_is_judged_by_progress_and_not_by_throughput() -> None:
    before, now = rate_of((100.0,) * 20), rate_of((150.0,) * 20)
    assert before is not None
    kept = judge(before, now, least_gain=1.0, worth=0.9, least_steps=15, most_steps=80)
    lost = judge(before, now, least_gain=1.0, worth=0.5, least_steps=15, most_steps=80)
    assert kept is not None
    assert lost is not None
    assert (kept.is_kept, kept.gain) == (True, pytest.approx(1.35))
    assert (lost.is_kept, lost.gain) == (False, pytest.approx(0.75))
    assert judge(before, rate_of((150.0,) * 10), least_gain=1.0, worth=0.9, least_steps=15, most_steps=80) is None
