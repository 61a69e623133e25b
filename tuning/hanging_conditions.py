"""Conditions over what hangs on a searched value: the scheme of an exchange that is searched whole, say. Pure.

Such a condition is met by some values of what is searched. It is settled into one over that, so that a space knows
conditions over its own parameters only.
"""

from __future__ import annotations

from collections.abc import Mapping

from tuning.distributions import Choice, distribution_of
from tuning.job_values import holds
from tuning.paths import DEFAULT_OF, applied, found, hangs_on_scheme, path_fault
from tuning.space_problems import place, space_problems
from tuning.spec import SweepSpec
from tuning.values import Scalar, same, told
from workers.errors import FieldProblem


def over_searched(spec: SweepSpec) -> SweepSpec:
    """The sweep with each such condition spelled as one over the parameter that it hangs on.

    Only where ``hanging_condition_problems`` found none. Spelled once it stays so.
    """
    space = dict(spec.space)
    for path, parameter in spec.space.items():
        when: dict[str, Scalar] = {}
        for above, value in parameter.when.items():
            source = _source(spec, above)
            when |= {above: value} if source is None else {source: _meeting(spec, source, above, value)[0]}
        space[path] = parameter.model_copy(update={"when": when})
    return spec.model_copy(update={"space": space})


def hanging_condition_problems(spec: SweepSpec) -> list[FieldProblem]:
    """What is met by none of the searched values, or by several, or not together. Of a space with no other problem."""
    problems = []
    for path, parameter in spec.space.items():
        met: dict[str, Scalar] = {k: v for k, v in parameter.when.items() if k in spec.space}
        for above, value in parameter.when.items():
            if (part := _part_of_workers(spec, above)) is not None:
                why = f"workers are as many as {part} that is searched, and up to workers.max; hang it on {part}"
                problems.append(FieldProblem(place(path, "when", above), why))
                continue
            if (source := _source(spec, above)) is None:
                continue
            meeting = _meeting(spec, source, above, value)
            fault = path_fault(above) or _fault(spec, source, {above: value}, meeting)
            fault = fault or _clash(met, source, meeting[0])
            met |= {source: meeting[0]} if meeting else {}
            problems += [FieldProblem(place(path, "when", above), fault)] if fault else []
    return problems or space_problems(over_searched(spec).space)


def _part_of_workers(spec: SweepSpec, path: str) -> str | None:
    """Which part of ``workers`` is searched, where a condition is over all of it: each trial has its own range."""
    if path != "workers" or path in spec.space:
        return None
    return next((part for part in ("workers.min", "workers.max") if part in spec.space), None)


def _source(spec: SweepSpec, path: str) -> str | None:
    """The searched path whose value decides what a trial has at this one, which is not searched itself."""
    if path in spec.space:
        return None
    way = path.split(".")
    whole = next((w for n in range(1, len(way)) if (w := ".".join(way[:n])) in spec.space), None)
    if whole is not None:
        return whole
    source = "communication.scheme" if hangs_on_scheme(path) else DEFAULT_OF.get(path)
    is_given = path != "communication" and found(spec.job, path)[0]
    return source if source in spec.space and not is_given else None


def _meeting(spec: SweepSpec, source: str, path: str, value: Scalar) -> list[Scalar]:
    """The values of the searched path with which a trial has the value at the other."""
    distribution = distribution_of(spec.space[source])
    # What hangs on a number, as the least of so many workers does, is that number.
    candidates = distribution.options if isinstance(distribution, Choice) else (value,)
    return [
        each for each in candidates if distribution.contains(each) and holds(_with(spec, source, each), path, value)
    ]


def _with(spec: SweepSpec, source: str, value: Scalar) -> Mapping[str, object]:
    try:
        return applied(spec.job, {source: value})
    except KeyError:  # a plain value of the job is in the way: that is refused where jobs are made
        return applied({}, {source: value})


def _fault(spec: SweepSpec, source: str, condition: Mapping[str, Scalar], meeting: list[Scalar]) -> str:
    if not meeting:
        such = distribution_of(spec.space[source]).at(0)
        return f"no {source} that is searched here gives {told(condition)}; hang it on one, such as {source}: {such}"
    if len(meeting) > 1:
        several = ", ".join(map(str, meeting))
        return f"{told(condition)} comes with several values of {source} ({several}); write {source} and one of them"
    return ""


def _clash(met: Mapping[str, Scalar], source: str, value: Scalar) -> str:
    if source not in met or same(met[source], value):
        return ""
    return f"never met: {source} would be both {met[source]!r:.80} and {value!r:.80}; change one of them"
