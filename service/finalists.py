"""A sweep's best as a configuration would have it, and whether that undoes what was changed meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.configuration_records import ConfigurationRow, named_job, nameless
from service.promotion_records import INCUMBENT, Contender, PromotionRow
from service.sweep_records import SweepRow, TrialRow
from tuning.inheritance import point_of
from tuning.space import space_of
from tuning.spec import SweepSpec, trial_spec
from tuning.values import Params, key_of
from workers.errors import SpecError

_FILED = ("labels", "priority", "queue")


def finalist(spec: SweepSpec, number: int, params: Params, configuration: ConfigurationRow) -> Contender:
    """Its job as it would be in use: how it is filed stays as it is now."""
    job = nameless(trial_spec(spec, number, params))
    filed = {key: configuration.document[key] for key in _FILED}
    return Contender(number=number, params=params, job={**job, **filed})


def point_in_use(spec: SweepSpec, configuration: ConfigurationRow) -> Params | None:
    """The point of the space that is the configuration itself; None where there is none, or of another job."""
    point = point_of(configuration.document, space_of(spec.space))
    if point is None:
        return None
    tried = finalist(spec, 0, point, configuration).job
    return point if _without_seed(tried) == _without_seed(configuration.document) else None


def _without_seed(job: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in job.items() if key != "seed"}


def outdated(sweep: SweepRow, trials: Sequence[TrialRow], configuration: ConfigurationRow) -> str | None:
    """Why its winner would undo what was changed since the sweep began from it; None where it would not.

    How a job is filed is no part of that, and the job of one of its trials, as is each that it put itself, has nothing
    that would be lost.
    """
    origin, spec = sweep.origin, sweep.spec
    if origin is None or origin.name != configuration.name:
        return None
    now = _with_defaults(configuration.document, configuration.name)
    if {**_with_defaults(spec.job, configuration.name), **{key: now[key] for key in _FILED}} == now:
        return None
    point = point_of(now, space_of(spec.space))
    is_tried = point is not None and key_of(point) in {key_of(trial.params) for trial in trials}
    if is_tried and finalist(spec, 0, point or {}, configuration).job == now:
        return None
    is_anew = origin.version == configuration.version
    versions = f"is at version {configuration.version}, the sweep began from version {origin.version}"
    return (
        f"configuration {configuration.name} {'was deleted and put anew' if is_anew else versions}, and its winner "
        f"would undo what was changed since; {_way_on(sweep)}"
    )


def overtaken(
    sweep: SweepRow, trials: Sequence[TrialRow], promotion: PromotionRow, configuration: ConfigurationRow | None
) -> str | None:
    """Why nothing is replaced where the configuration is not the one compared with any more; None where it is."""
    name = promotion.configuration
    if configuration is None:
        return f"configuration {name} was deleted meanwhile; put one, and promote again"
    compared = next(contender for contender in promotion.contenders if contender.number == INCUMBENT)
    if configuration.version != promotion.base_version:
        versions = f"it is at version {configuration.version}, compared was version {promotion.base_version}"
        told = f"configuration {name} was changed meanwhile and stays as it is: {versions}"
    elif configuration.document != compared.job:
        told = f"configuration {name} was deleted and put anew meanwhile, and stays as it is"
    else:
        return None
    return f"{told}; {_way_on(sweep) if outdated(sweep, trials, configuration) else 'promote again'}"


def _way_on(sweep: SweepRow) -> str:
    anew = f"warm_start: [{sweep.id}] lets it begin from what this one found"
    return f"make a sweep from the configuration as it is now, and {anew}"


def _with_defaults(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """As this version would keep it; as it is where this version takes it no longer."""
    try:
        return nameless(named_job(document, name))
    except SpecError:
        return document
