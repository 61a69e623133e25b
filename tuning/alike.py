"""Which trials of a sweep can be held against each other. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tuning.trial import Trial, TrialState

LEAST_COMPARED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """So many trials can be held against each other, after ``samples`` each, None for at its end."""

    number: int = 0
    samples: int | None = None


def alike(trials: Iterable[Trial], rungs: Sequence[int]) -> Alike:
    """As far on as half of the trials that reported, and no fewer than four, have come: to their ends or to a rung.

    Those that went on to the end of a sweep that prunes are few, and the good ones: among them little is to be seen of
    what made them so. Failed ones, and what is no number, tell nothing. Empty where fewer than four came anywhere.
    """
    sound = [t for t in trials if t.state is not TrialState.FAILED and (t.reports or t.state is TrialState.COMPLETE)]
    least = max(LEAST_COMPARED, len(sound) / 2)
    num_ended = sum(_has_ended(trial) for trial in sound)
    if num_ended >= least:
        return Alike(number=num_ended)
    for rung in sorted(rungs, reverse=True):
        if (number := sum(trial.samples >= rung for trial in sound)) >= least:
            return Alike(number=number, samples=rung)
    return Alike(number=num_ended) if num_ended >= LEAST_COMPARED else Alike()


def stood(trials: Iterable[Trial], samples: int | None) -> Iterator[Trial]:
    """Those that came so far, each as if it had ended there; None for those that ended."""
    for trial in trials:
        if samples is None:
            if _has_ended(trial):
                yield trial
        elif trial.samples >= samples and trial.state is not TrialState.FAILED:
            value = next(report.value for report in trial.reports if report.samples >= samples)
            if math.isfinite(value):
                yield replace(trial, state=TrialState.COMPLETE, value=value)


def _has_ended(trial: Trial) -> bool:
    return trial.state is TrialState.COMPLETE and math.isfinite(trial.value or math.nan)
