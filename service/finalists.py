"""A sweep's best as a configuration would have it, and whether that undoes what was changed meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from service.configuration_records import ConfigurationRow, nameless
from service.promotion_records import Contender
from service.sweep_records import SweepRow, TrialRow
from tuning.inheritance import point_of
from tuning.space import space_of
from tuning.spec import SweepSpec, trial_spec
from tuning.values import Params, key_of


def finalist(spec: SweepSpec, number: int, params: Params, configuration: ConfigurationRow) -> Contender:
    """Its job as it would be in use: how it is filed stays as it is now."""
    job = nameless(trial_spec(spec, number, params))
    filed = {key: configuration.document[key] for key in ("labels", "priority", "queue")}
    return Contender(number=number, params=params, job={**job, **filed})


def outdated(sweep: SweepRow, trials: Sequence[TrialRow], configuration: ConfigurationRow) -> str | None:
    """Why its winner would undo what was changed since it began from another version; None where it would not.

    A version that is the job of one of its trials, as is each that it put itself, has nothing that would be lost.
    """
    origin = sweep.origin
    if origin is None or origin.name != configuration.name or origin.version == configuration.version:
        return None
    spec = sweep.spec
    point = point_of(configuration.document, space_of(spec.space))
    tried = {key_of(trial.params) for trial in trials}
    is_tried = point is not None and key_of(point) in tried
    if is_tried and finalist(spec, 0, point or {}, configuration).job == configuration.document:
        return None
    return (
        f"configuration {configuration.name} is at version {configuration.version}, the sweep began from version "
        f"{origin.version}, and its winner would undo what was changed since; make a sweep from the configuration as "
        f"it is now, and warm_start: [{sweep.id}] lets it begin from what this one found"
    )
