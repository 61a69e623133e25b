"""What a sweep takes over from earlier ones. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tuning.job_values import point_value
from tuning.space import Space
from tuning.spec_parts import Mode
from tuning.trial import Report, Trial, TrialState, last_value
from tuning.values import Params, PointKey, Scalar, key_of

MAX_INHERITED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a trial of another sweep came to, at a point that this sweep's space has too.

    ``reports`` are those of a trial that was not complete, and ``value`` the last of them.
    """

    params: Params
    value: float
    reports: tuple[Report, ...] = ()

    def as_trial(self, number: int) -> Trial:
        """As if it had been one of this sweep's."""
        if self.reports:
            return Trial(number=number, params=self.params, state=TrialState.PRUNED, reports=self.reports)
        return Trial(number=number, params=self.params, state=TrialState.COMPLETE, value=self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """What another sweep, ``source``, hands on; where it found nothing that is of use here, only that it was.

    ``tried`` are the points of this sweep's space that it tried, whatever became of them, the last one begun last.
    ``is_named``: this sweep begins from it, and not from another that did.
    """

    source: str
    is_named: bool = True
    results: tuple[Result, ...] = ()
    tried: tuple[Params, ...] = ()


def inherited(earlier: Mapping[str, Iterable[Trial]], space: Space, mode: Mode) -> tuple[Inherited, ...]:
    """What each of the earlier sweeps (id -> trials) hands on; of all together at most ``MAX_INHERITED`` results.

    A point outside the space, or with other parameters, says nothing that a sampler could use, and Optuna
    would take it without complaint. The caller gives only sweeps over the same metric. Results are the
    best: of complete trials before what others had reported, and of these those that came furthest before others.
    """
    sign = -1.0 if mode == "max" else 1.0

    def rank(found: tuple[str, Result]) -> tuple[bool, int, float]:
        reports = found[1].reports
        return bool(reports), -reports[-1].samples if reports else 0, sign * found[1].value

    known = {source: _points(trials, space) for source, trials in earlier.items()}
    found = [(source, result) for source, trials in known.items() for result in _results(trials)]
    best: dict[PointKey, tuple[str, Result]] = {}
    for each in sorted(found, key=rank):
        best.setdefault(key_of(each[1].params), each)
    kept = list(best.values())[:MAX_INHERITED]
    return tuple(
        Inherited(
            source=source,
            results=tuple(result for of, result in kept if of == source),
            tried=tuple(trial.params for trial in trials if _is_tried(trial)),
        )
        for source, trials in known.items()
    )


def tried_by(forebears: Mapping[str, Iterable[Params]], space: Space) -> tuple[Inherited, ...]:
    """What sweeps (id -> points, the last one begun last) hand on that only tell what is not to be tried again."""
    return tuple(
        Inherited(source=source, is_named=False, tried=tuple(params for params in points if space.contains(params)))
        for source, points in forebears.items()
    )


def _points(trials: Iterable[Trial], space: Space) -> list[Trial]:
    """The trials that each stand for one point of the space, the last one begun last.

    None of a population's: what they came to is owed to several points, and to each other's states.
    """
    known = sorted(trials, key=lambda trial: trial.number)
    if any(trial.changes or trial.is_changing for trial in known):
        return []
    return [trial for trial in known if space.contains(trial.params)]


def _is_tried(trial: Trial) -> bool:
    """Not where the sweep ended before the trial reported anything; one that diverges has reported that."""
    return bool(trial.reports) or trial.state is not TrialState.PRUNED


def _results(trials: Iterable[Trial]) -> list[Result]:
    told = []
    for trial in trials:
        if trial.state is TrialState.COMPLETE:
            if trial.value is not None and math.isfinite(trial.value):
                told.append(Result(params=trial.params, value=trial.value))
        elif trial.state is not TrialState.FAILED and (value := last_value(trial.reports)) is not None:
            told.append(Result(params=trial.params, value=value, reports=trial.reports))
    return told


def point_of(job: Mapping[str, Any], space: Space) -> dict[str, Scalar] | None:
    """The point of the space at which a job spec lies, such as the incumbent's; None where it lies outside.

    What it does not say is as it would be by default.
    """
    point = space.point(lambda path, _: point_value(job, path))
    return point if space.contains(point) else None
