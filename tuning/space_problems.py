"""What is wrong with a search space by itself, whatever the job. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from tuning.distributions import Uniform, distribution_of, faults
from tuning.paths import is_option, other_spelling, path_fault
from tuning.spec_parts import DistributionSpec
from tuning.values import Scalar, is_variable, same
from workers.errors import FieldProblem

MAX_PARAMETERS = 64

Specs = Mapping[str, DistributionSpec]


def space_problems(specs: Specs) -> list[FieldProblem]:
    """Every fault of paths, distributions and conditions, with pointers from ``/space`` on."""
    if not specs:
        return [FieldProblem("/space", "nothing is searched; give at least one path, such as optimizer.lr")]
    if len(specs) > MAX_PARAMETERS:
        told = f"{len(specs)} parameters are more than a sweep can search ({MAX_PARAMETERS}); leave some out"
        return [FieldProblem("/space", told)]
    problems = []
    for path, spec in specs.items():
        if fault := path_fault(path) or _overlap(path, specs):
            problems.append(FieldProblem(place(path), fault))
        problems += [FieldProblem(place(path, key), detail) for key, detail in faults(spec, is_variable(path))]
    sound = {path: spec for path, spec in specs.items() if not faults(spec)}
    return problems + _condition_problems(specs, sound)


def place(path: str, *keys: str) -> str:
    """JSON Pointer of a parameter, or of something in it."""
    parts = ("space", path, *(key for key in keys if key))
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


def _overlap(path: str, specs: Specs) -> str:
    again = other_spelling(path) if is_option(path) else None
    inner = next((other for other in specs if other.startswith(path + ".") or other == again), None)
    return f"{path} and {inner} set the same value; keep one of them" if inner else ""


def _condition_problems(specs: Specs, sound: Specs) -> list[FieldProblem]:
    problems = []
    for path, spec in specs.items():
        for above, value in spec.when.items():
            if fault := _condition_fault(above, value, sound):
                problems.append(FieldProblem(place(path, "when", above), fault))
    try:
        order = tuple(TopologicalSorter({path: tuple(spec.when) for path, spec in specs.items()}).static_order())
    except CycleError as error:
        ring: list[str] = error.args[1]
        told = f"these conditions wait for one another: {' -> '.join(ring)}; take one of them out"
        return [*problems, FieldProblem(place(ring[0], "when"), told)]
    return problems + _impossible([path for path in order if path in specs], specs)


def _condition_fault(above: str, value: Scalar, sound: Specs) -> str:
    # What is not searched has a value in the job: see ``fixed_conditions``.
    if above not in sound:
        other = other_spelling(above)
        return f"{above} is searched here as {other}; write {other}" if other in sound else ""
    distribution = distribution_of(sound[above])
    if isinstance(distribution, Uniform) and distribution.count() == 0:
        never = "this" if is_variable(above) else value
        return f"{above} is continuous and as good as never {never}; give it a step, or make it a choice"
    if not distribution.contains(value) and is_variable(above):
        return f"{above} cannot be what is written here; give one of its values"
    if not distribution.contains(value):
        return f"{above} cannot be {value!r:.80}; give one of its values, such as {distribution.at(0)!r:.80}"
    return ""


def _impossible(order: list[str], specs: Specs) -> list[FieldProblem]:
    """Conditions that exclude each other through what they themselves need."""
    needed: dict[str, dict[str, Scalar]] = {}
    for path in order:
        own: dict[str, Scalar] = {}
        for above, value in specs[path].when.items():
            for name, wanted in {**needed.get(above, {}), above: value}.items():
                if name in own and not same(own[name], wanted):
                    both = f"both {own[name]!r:.80} and {wanted!r:.80}"
                    told = f"never met: {name} would be {'of two values' if is_variable(name) else both}"
                    return [FieldProblem(place(path, "when"), f"{told}; change one of them")]
                own[name] = wanted
        needed[path] = own
    return []
