"""Limits of a sweep: each ends it with words, and what is no evidence does not."""

from __future__ import annotations

from tuning.limits import Used, limit_reached
from tuning.spec_parts import SweepLimits
from tuning.trial import Trial, TrialState

NOTHING = Used(time_s=0.0, cost=None)


def ended(*values: float | None, state: TrialState = TrialState.COMPLETE) -> list[Trial]:
    return [Trial(number=n, params={}, state=state, value=value) for n, value in enumerate(values)]


def test_time_and_money_end_a_sweep() -> None:
    limits = SweepLimits(time_s=60, cost=3.0)
    assert limit_reached(limits, [], "max", Used(time_s=59.9, cost=2.9)) is None
    assert limit_reached(limits, [], "max", Used(time_s=60.0, cost=0.0)) == "limits.time_s=60 is reached after 60 s"
    assert limit_reached(limits, [], "max", Used(time_s=1.0, cost=3.5)) == "limits.cost=3 is reached with 3.50"
    cents, spent = SweepLimits(cost=0.0004), Used(time_s=1.0, cost=0.00042519)
    assert limit_reached(cents, [], "max", spent) == "limits.cost=0.0004 is reached with 0.000425"
    assert limit_reached(limits, [], "max", Used(time_s=1.0, cost=None)) is None
    told = limit_reached(limits, [], "max", Used(time_s=61, cost=None, besides="the runs of its promotions"))
    assert told == "limits.time_s=60 is reached after 61 s, the runs of its promotions counted"


def test_trials_without_improvement_end_a_sweep() -> None:
    limits = SweepLimits(trials_without_improvement=2)
    assert limit_reached(limits, ended(0.1, 0.5, 0.4), "max", NOTHING) is None
    told = limit_reached(limits, ended(0.1, 0.5, 0.4, 0.5), "max", NOTHING)
    assert told is not None
    assert told.endswith("none of the last 2 trials was better")
    assert limit_reached(limits, ended(0.5, 0.4, 0.3), "min", NOTHING) is None


def test_pruned_trials_are_no_improvement_and_failed_ones_say_nothing() -> None:
    limits, best = SweepLimits(trials_without_improvement=2), ended(0.5)
    assert limit_reached(limits, best + ended(None, None, state=TrialState.FAILED), "max", NOTHING) is None
    assert limit_reached(limits, best + ended(None, None, state=TrialState.PRUNED), "max", NOTHING)
    assert limit_reached(limits, ended(None, None, None, state=TrialState.PRUNED), "max", NOTHING) is None
