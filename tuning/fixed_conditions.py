"""Conditions over values that are not searched: each holds for all trials, or for none. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from tuning.hanging_conditions import hanging_condition_problems, over_searched
from tuning.job_values import ANY_JOB, LENGTHS, holds, value_of
from tuning.paths import applied, is_free, path_fault
from tuning.space_problems import place
from tuning.spec import SweepSpec
from tuning.spec_parts import DistributionSpec
from tuning.values import Scalar, is_variable
from workers.errors import FieldProblem, SpecError
from workers.spec import parse_job_spec


def settled(spec: SweepSpec) -> SweepSpec:
    """The sweep without conditions that its job meets, and without what is never searched as it does not.

    Only where ``space_problems`` and ``fixed_condition_problems`` found nothing. Settled once it stays so.
    """
    spec = over_searched(spec)
    kept = dict(spec.space)
    for path, parameter in spec.space.items():
        fixed = {above: holds(spec.job, above, value) for above, value in _fixed_conditions(spec, parameter)}
        if not all(fixed.values()):
            del kept[path]
        elif fixed:
            rest = {above: value for above, value in parameter.when.items() if above not in fixed}
            kept[path] = parameter.model_copy(update={"when": rest})
    # What hangs on a parameter that is never searched is not either, as far down as that goes.
    while below := [path for path, parameter in kept.items() if not parameter.when.keys() <= kept.keys()]:
        for path in below:
            del kept[path]
    return spec.model_copy(update={"space": kept})


def fixed_condition_problems(spec: SweepSpec) -> list[FieldProblem]:
    """What no job can meet, and a space of which this job leaves nothing. Of a space with no other problem."""
    if problems := hanging_condition_problems(spec):
        return problems
    spec = over_searched(spec)
    for path, parameter in spec.space.items():
        for above, value in _fixed_conditions(spec, parameter):
            if not holds(spec.job, above, value) and (fault := _fault(spec, above, value)):
                problems.append(FieldProblem(place(path, "when", above), fault))
    # A job that says nothing is refused for that.
    if problems or not spec.job or settled(spec).space:
        return problems
    path, above, value = next(_unmet(spec))
    there = f"{value_of(spec.job, above)!r:.80} in the job, never {value!r:.80}"
    if is_variable(above):
        there = "another in the job"
    told = f"nothing is searched: {above} is {there}; set it there, search it too, or take the condition out"
    return [FieldProblem(place(path, "when", above), told)]


def _fixed_conditions(spec: SweepSpec, parameter: DistributionSpec) -> list[tuple[str, Scalar]]:
    return [(above, value) for above, value in parameter.when.items() if above not in spec.space]


def _unmet(spec: SweepSpec) -> Iterator[tuple[str, str, Scalar]]:
    for path, parameter in spec.space.items():
        for above, value in _fixed_conditions(spec, parameter):
            if not holds(spec.job, above, value):
                yield path, above, value


def _fault(spec: SweepSpec, path: str, value: Scalar) -> str:
    """Why no job could have this value there, or why this is likely to be a slip; empty where it may be meant."""
    if fault := path_fault(path):
        return fault
    if not is_free(path):
        return "" if path in LENGTHS else _refusal(spec.job, path, value)
    known = [*spec.space, *_given_paths(spec.job.get("config"))]
    near = [] if path in known else difflib.get_close_matches(path, known, n=1, cutoff=0.85)
    return f"{path} is neither searched nor in the job; did you mean {near[0]}? Else set it in the job" if near else ""


def _given_paths(config: object) -> list[str]:
    return [f"config.{key}" for key in config] if isinstance(config, Mapping) else []


def _refusal(job: Mapping[str, Any], path: str, value: Scalar) -> str:
    pointer = "/" + path.replace(".", "/")
    try:
        parse_job_spec(applied({**ANY_JOB, **_mapping_at(job, path)}, {path: value}))
    except SpecError as error:
        return next((p.detail for p in error.problems if p.pointer == pointer), "")
    return ""


def _mapping_at(job: Mapping[str, Any], path: str) -> dict[str, Any]:
    first = path.split(".")[0]
    return {first: dict(job[first])} if isinstance(job.get(first), Mapping) else {}
