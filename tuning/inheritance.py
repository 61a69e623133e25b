"""What a sweep takes over from earlier ones. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tuning.paths import found
from tuning.space import Space
from tuning.spec_parts import Mode
from tuning.trial import Trial, TrialState
from tuning.values import Params, PointKey, Scalar, key_of

MAX_INHERITED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """A result of another sweep, ``source``, at a point that this sweep's space has too."""

    source: str
    params: Params
    value: float

    def as_trial(self, number: int) -> Trial:
        """As if it had been one of this sweep's."""
        return Trial(number=number, params=self.params, state=TrialState.COMPLETE, value=self.value)


def inherited(earlier: Mapping[str, Iterable[Trial]], space: Space, mode: Mode) -> tuple[Inherited, ...]:
    """The best results of earlier sweeps (id -> trials) that this space contains, at most ``MAX_INHERITED``.

    A point outside the space, or with other parameters, says nothing that a sampler could use, and Optuna
    would take it without complaint. The caller gives only sweeps over the same metric.
    """
    sign = -1.0 if mode == "max" else 1.0
    best: dict[PointKey, Inherited] = {}
    for source, trials in earlier.items():
        for trial in trials:
            if trial.state is not TrialState.COMPLETE or trial.value is None or not math.isfinite(trial.value):
                continue
            key = key_of(trial.params)
            known = best.get(key)
            if space.contains(trial.params) and (known is None or sign * trial.value < sign * known.value):
                best[key] = Inherited(source=source, params=trial.params, value=trial.value)
    return tuple(sorted(best.values(), key=lambda i: sign * i.value)[:MAX_INHERITED])


def point_of(job: Mapping[str, Any], space: Space) -> dict[str, Scalar] | None:
    """The point of the space at which a job spec lies, such as the incumbent's; None where it lies outside."""
    point = space.point(lambda path, _: found(job, path)[1])
    return point if space.contains(point) else None
