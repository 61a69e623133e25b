"""What a sweep takes over from earlier ones. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tuning.paths import found
from tuning.space import Space
from tuning.spec_parts import Mode
from tuning.trial import Report, Trial, TrialState, last_value
from tuning.values import Params, PointKey, Scalar, key_of

MAX_INHERITED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """A result of another sweep, ``source``, at a point that this sweep's space has too.

    ``reports`` are those of a trial that was not complete, and ``value`` the last of them.
    """

    source: str
    params: Params
    value: float
    reports: tuple[Report, ...] = ()

    def as_trial(self, number: int) -> Trial:
        """As if it had been one of this sweep's."""
        if self.reports:
            return Trial(number=number, params=self.params, state=TrialState.PRUNED, reports=self.reports)
        return Trial(number=number, params=self.params, state=TrialState.COMPLETE, value=self.value)


def inherited(earlier: Mapping[str, Iterable[Trial]], space: Space, mode: Mode) -> tuple[Inherited, ...]:
    """The best results of earlier sweeps (id -> trials) that this space contains, at most ``MAX_INHERITED``.

    A point outside the space, or with other parameters, says nothing that a sampler could use, and Optuna
    would take it without complaint. The caller gives only sweeps over the same metric. One in
    which no trial is complete gives what its trials had reported, those that came furthest before others.
    """
    sign = -1.0 if mode == "max" else 1.0

    def rank(found: Inherited) -> tuple[bool, int, float]:
        return bool(found.reports), -found.reports[-1].samples if found.reports else 0, sign * found.value

    best: dict[PointKey, Inherited] = {}
    for each in sorted((each for item in earlier.items() for each in _results(*item)), key=rank):
        if space.contains(each.params):
            best.setdefault(key_of(each.params), each)
    return tuple(best.values())[:MAX_INHERITED]


def _results(source: str, trials: Iterable[Trial]) -> list[Inherited]:
    known = list(trials)
    complete = [
        Inherited(source=source, params=trial.params, value=trial.value)
        for trial in known
        if trial.state is TrialState.COMPLETE and trial.value is not None and math.isfinite(trial.value)
    ]
    return complete or [
        Inherited(source=source, params=trial.params, value=value, reports=trial.reports)
        for trial in known
        if trial.state is not TrialState.FAILED and (value := last_value(trial.reports)) is not None
    ]


def point_of(job: Mapping[str, Any], space: Space) -> dict[str, Scalar] | None:
    """The point of the space at which a job spec lies, such as the incumbent's; None where it lies outside."""
    point = space.point(lambda path, _: found(job, path)[1])
    return point if space.contains(point) else None
