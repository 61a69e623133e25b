"""Which trials of a sweep can be held against each other. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tuning.trial import Trial, TrialState

LEAST_COMPARED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Trials that can be held against each other: each as if it had ended after ``samples``, None for at its end."""

    trials: tuple[Trial, ...] = ()
    samples: int | None = None


def alike(trials: Sequence[Trial], rungs: Sequence[int]) -> Alike:
    """As far on as half of the trials that reported, and no fewer than four, have come: to their ends or to a rung.

    Those that went on to the end of a sweep that prunes are few, and the good ones: among them little is to be seen of
    what made them so. Failed ones, and what is no number, tell nothing. Empty where fewer than four came anywhere.
    """
    sound = [t for t in trials if t.state is not TrialState.FAILED and (t.reports or t.state is TrialState.COMPLETE)]
    least = max(LEAST_COMPARED, len(sound) / 2)
    ended = tuple(t for t in sound if t.state is TrialState.COMPLETE and math.isfinite(t.value or math.nan))
    if len(ended) >= least:
        return Alike(trials=ended)
    for rung in sorted(rungs, reverse=True):
        if sum(trial.samples >= rung for trial in sound) >= least:
            return Alike(trials=tuple(_at(rung, sound)), samples=rung)
    return Alike(trials=ended) if len(ended) >= LEAST_COMPARED else Alike()


def _at(rung: int, trials: Sequence[Trial]) -> Iterator[Trial]:
    for trial in trials:
        value = next((report.value for report in trial.reports if report.samples >= rung), math.nan)
        if math.isfinite(value):
            yield replace(trial, state=TrialState.COMPLETE, value=value)
