"""Reading a sweep spec: every refusal at once, each with its pointer. Pure.

``parse_sweep_spec`` is the one way in. It refuses as ``parse_job_spec`` does, and builds the job of every
corner of the space, so that no trial is refused later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from tuning.directions import is_less_better
from tuning.fixed_conditions import settled
from tuning.hanging_conditions import hanging_condition_problems
from tuning.objectives import no_such_metric, objective_fault
from tuning.paths import path_fault
from tuning.space_problems import place, space_problems
from tuning.spec import SweepSpec
from tuning.spec_problems import Known, rule_problems, rung_problems
from tuning.trial_jobs import job_problems, resolved_job
from workers.errors import FieldProblem, SpecError
from workers.problems import Place, problems_of
from workers.spec import parse_job_spec
from workers.telemetry_keys import can_be_reported

_LABEL = "must be a DNS-1123 label: lower-case letters, digits and '-', at most 63 characters"
_TOLD: dict[Place, str] = {
    ("name",): _LABEL,
    ("promote",): f"{_LABEL}; the name of a configuration",
    ("job",): "must be a job spec without name, or {from: NAME} of a configuration",
    (
        "space",
    ): "must be a mapping of paths in the job spec to distributions, as in optimizer.lr: {log_uniform: [1e-4, 1e-1]}",
    ("space", "*"): "must be a distribution: {uniform: [low, high]}, {log_uniform: ...}, {int: ...} or {choice: [...]}",
}

_OF_VARIABLES = re.compile(r"/space/([^/]*/when/)?env([./]|$)")

_STAND_INS = {"name": "x", "job": {}, "space": {}, "metric": "loss"}
_JUDGE_NOTHING = frozenset({"name", "metric", "mode", "seed", "promote"})
"""Fields that no rule reads besides another one."""


def wanted_configuration(document: object) -> str | None:
    """The name of the configuration that a sweep's job is taken from, for the caller to look up."""
    job = document.get("job") if isinstance(document, Mapping) else None
    name = job.get("from") if isinstance(job, Mapping) else None
    return name if isinstance(name, str) else None


def parse_sweep_spec(document: object, known: Known | None = None) -> SweepSpec:
    """Read a sweep spec from parsed YAML or JSON; the result holds the configuration's job, not its name.

    Raises SpecError with every problem found; its code is NOT_AVAILABLE where all that is wrong is that
    values are not built yet.
    """
    known = known or Known()
    if not isinstance(document, Mapping):
        seen = type(document).__name__
        raise SpecError(
            [FieldProblem("", f"a sweep spec is a mapping, this is a {seen}; give name, job, space, metric")]
        )
    filled, problems = _filled(document, known)
    try:
        spec = SweepSpec.model_validate(filled)
    except ValidationError as error:
        problems += map(_concealed, problems_of(error, filled, SweepSpec, _TOLD, hidden="env"))
        raise SpecError([*problems, *_further_problems(filled, problems, known)]) from None
    problems += rule_problems(spec, known)
    missing: list[FieldProblem] = []
    if not _touch_jobs(problems):
        spec = settled(spec)
        wrong, missing = job_problems(spec)
        problems += wrong
        if not (wrong or missing):
            problems += rung_problems(spec)
    problems, missing = _metric_problems(spec, problems, missing)
    if problems:
        raise SpecError(problems)
    if missing:
        raise SpecError(missing, code="NOT_AVAILABLE")
    return spec.model_copy(update={"job": resolved_job(spec)})


def _concealed(problem: FieldProblem) -> FieldProblem:
    """Without the value seen where it may be a secret: that of a variable."""
    if not _OF_VARIABLES.match(problem.pointer):
        return problem
    told, seen, _ = problem.detail.partition(" (seen: ")
    return FieldProblem(problem.pointer, told + " (seen: ...)" * bool(seen))


def _touch_jobs(problems: Iterable[FieldProblem]) -> bool:
    return any(p.pointer.startswith(("/space", "/job")) for p in problems)


def _further_problems(filled: Mapping[Any, Any], told: Sequence[FieldProblem], known: Known) -> list[FieldProblem]:
    """What else is wrong with the fields that are well-formed, as far as those that are not have no say in it."""
    broken = {first for problem in told for first in problem.pointer.split("/")[1:2]}
    sound = {key: value for key, value in filled.items() if key not in broken}
    try:
        spec = SweepSpec.model_validate({**_STAND_INS, **sound})
    except ValidationError:
        return []
    if "space" in broken:
        return _path_problems(filled.get("space"))
    is_judged = broken <= _JUDGE_NOTHING
    found = rule_problems(spec, known) if is_judged else space_problems(spec.space) or hanging_condition_problems(spec)
    return found if _touch_jobs([*told, *found]) else [*found, *job_problems(settled(spec))[0]]


def _path_problems(space: object) -> list[FieldProblem]:
    """Of a space in which something cannot be read, on which conditions may hang: its paths are wrong all the same."""
    paths = [path for path in space if isinstance(path, str)] if isinstance(space, Mapping) else []
    return [FieldProblem(place(path), fault) for path in paths if (fault := path_fault(path))]


def _filled(document: Mapping[Any, Any], known: Known) -> tuple[dict[Any, Any], list[FieldProblem]]:
    """The document with its job spelled out, and with the defaults that hang on other fields."""
    filled, problems = dict(document), []
    job, metric = filled.get("job"), filled.get("metric")
    if isinstance(job, Mapping) and "from" in job:
        problems = _from_problems(job, known)
        filled["job"] = {k: v for k, v in (known.configuration or {}).items() if k != "name"}
    elif isinstance(job, Mapping) and "name" in job:
        told = "a sweep names its trials itself, after its own name; leave the job's name out"
        problems = [FieldProblem("/job/name", told)]
    if filled.get("population") is not None:
        filled.setdefault("pruner", "none")
    if "mode" not in filled and isinstance(metric, str) and is_less_better(metric):
        told = f"{metric!r:.80} sounds as if less were better, and the default is max; say mode: min (or max)"
        problems.append(FieldProblem("/mode", told))
    return filled, problems


def _from_problems(job: Mapping[Any, Any], known: Known) -> list[FieldProblem]:
    name = job["from"]
    if len(job) > 1:
        others = ", ".join(repr(key) for key in job if key != "from")
        told = f"{{from: NAME}} stands alone; take out {others:.200}, or write the job out without from"
        return [FieldProblem("/job", told)]
    if known.configuration is None:
        told = f"there is no configuration {name!r:.80}; put one at /configurations/NAME, or write the job out"
        return [FieldProblem("/job/from", told)]
    return []


def _metric_problems(
    spec: SweepSpec, problems: list[FieldProblem], missing: list[FieldProblem]
) -> tuple[list[FieldProblem], list[FieldProblem]]:
    """A metric is what a checkpoint's metric can be, and something that this job measures."""
    if not can_be_reported(spec.metric):
        return [*problems, FieldProblem("/metric", no_such_metric(spec.metric))], missing
    probe = {"name": "x", "entrypoint": "workers.recipes.digits:build", "steps": 1}
    try:
        parse_job_spec({**probe, "checkpoint": {"metric": spec.metric}})
    except SpecError as error:
        found = [FieldProblem("/metric", p.detail) for p in error.problems]
        return (problems, [*missing, *found]) if error.code == "NOT_AVAILABLE" else ([*problems, *found], missing)
    if fault := objective_fault(spec.metric):
        return [*(p for p in problems if p.pointer != "/mode"), FieldProblem("/metric", fault)], missing
    if spec.metric == "gpu_utilisation" and (told := _lack_of_gpus(spec)):
        return [*problems, FieldProblem("/metric", told)], missing
    return problems, missing


def _lack_of_gpus(spec: SweepSpec) -> str:
    """Why trials have no GPUs, or may have none; empty where all that shall have one do."""
    given = spec.job.get("resources")
    resources = given if isinstance(given, Mapping) else {}
    if not resources.get("gpus", 0) and "resources.gpus" not in spec.space:
        return "gpu_utilisation is measured on GPUs only (seen: resources.gpus=0); give the job one, or another metric"
    instead = resources.get("cpus_instead")
    if instead is None and "resources.cpus_instead" not in spec.space:
        return ""
    seen = "in the space" if instead is None else instead
    return (
        f"gpu_utilisation is measured on GPUs only, and trials may sit on CPUs (seen: resources.cpus_instead={seen}); "
        "leave that out, or use another metric"
    )
