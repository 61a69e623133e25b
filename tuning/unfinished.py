"""What a sweep has found that was ended before any trial was complete. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuning.spec_parts import Mode
from tuning.trial import Trial, TrialState
from tuning.verdicts import score


@dataclass(frozen=True, slots=True, kw_only=True)
class Furthest:
    """Trial ``number`` was the best where trials had come furthest, with ``value`` after so many ``samples``."""

    number: int
    samples: int
    value: float


def furthest_best(trials: Iterable[Trial], rungs: Sequence[int], mode: Mode) -> Furthest | None:
    """The best at the furthest rung that any has reached, or of the last reports where none has; None without any.

    What fails or diverges is nothing that anybody would use, whatever it reported before.
    """
    sound = [
        trial
        for trial in trials
        if trial.state is not TrialState.FAILED and trial.reports and math.isfinite(trial.reports[-1].value)
    ]
    line = max((rung for rung in rungs for trial in sound if trial.samples >= rung), default=None)
    found = [
        (trial, next(r for r in trial.reports if r.samples >= line) if line is not None else trial.reports[-1])
        for trial in sound
        if line is None or trial.samples >= line
    ]
    told = [
        Furthest(number=trial.number, samples=report.samples, value=report.value)
        for trial, report in found
        if math.isfinite(report.value)
    ]
    return max(told, key=lambda each: (score(each.value, mode), -each.number), default=None)
