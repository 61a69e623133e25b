"""When a sweep has had enough, though trials are left. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuning.spec_parts import Mode, SweepLimits
from tuning.trial import Trial, TrialState
from tuning.verdicts import score

MAX_FAILURES = 5
"""So many failed trials, and none that did anything else, end a sweep: the next ones would fail as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """``time_s`` are the seconds since a sweep began, not counting those in which it was paused.

    ``cost`` is what it has cost so far, in the currency of the settings, None without prices. ``besides`` says what
    both count besides its trials, such as ``the runs of its promotions``; empty where that is nothing.
    """

    time_s: float
    cost: float | None
    besides: str = ""


def limit_reached(limits: SweepLimits, ended: Sequence[Trial], mode: Mode, used: Used) -> str | None:
    """Which limit ends the sweep, in words; None while none does.

    ``ended`` are the trials in the order in which they ended.
    """
    counted = f", {used.besides} counted" if used.besides else ""
    if limits.time_s is not None and used.time_s >= limits.time_s:
        return f"limits.time_s={limits.time_s:g} is reached after {used.time_s:.0f} s{counted}"
    if limits.cost is not None and used.cost is not None and used.cost >= limits.cost:
        spent = f"{used.cost:.2f}" if used.cost >= 1 else f"{used.cost:.3g}"
        return f"limits.cost={limits.cost:g} is reached with {spent}{counted}"
    patience = limits.trials_without_improvement
    if patience is not None and (num_since := _num_since_best(ended, mode)) >= patience:
        return (
            f"limits.trials_without_improvement={patience} is reached: none of the last {num_since} trials was better"
        )
    return None


def _num_since_best(ended: Sequence[Trial], mode: Mode) -> int:
    """Trials since the best one; a pruned trial counts as no better, a failed one as nothing at all."""
    best, num_since = -math.inf, 0
    for trial in ended:
        if trial.state is TrialState.FAILED:
            continue
        worth = (
            score(trial.value, mode) if trial.state is TrialState.COMPLETE and trial.value is not None else -math.inf
        )
        num_since = 0 if worth > best else num_since + 1
        best = max(best, worth)
    return num_since if best > -math.inf else 0
