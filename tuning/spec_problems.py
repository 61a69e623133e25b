"""Fields of a sweep spec that are well-formed each and cannot be true together. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tuning.distributions import Choice
from tuning.fixed_conditions import fixed_condition_problems, settled
from tuning.lengths import total_range
from tuning.pruning import spelled_out
from tuning.space import MAX_GRID_POINTS, Space, space_of
from tuning.space_problems import place, space_problems
from tuning.spec import SweepSpec
from workers.errors import FieldProblem

_PACKAGES = {"cmaes": ("cmaes",), "gp": ("scipy", "torch"), "tpe": (), "random": (), "grid": ()}
_POPULATION_PATHS = ("optimizer.lr", "batch.global_size")
_LEAST_POPULATION = {"pbt": 2, "pb2": 4}


def _is_installed(package: str) -> bool:
    return find_spec(package) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a spec is judged by besides itself.

    ``configuration`` is the job spec of the configuration that ``wanted_configuration`` names, None where there
    is none of that name. ``has_prices`` tells whether the settings can turn seconds into money.
    """

    configuration: Mapping[str, Any] | None = None
    has_prices: bool = False
    is_installed: Callable[[str], bool] = _is_installed


def rule_problems(spec: SweepSpec, known: Known) -> list[FieldProblem]:
    """Everything but what the job itself says to the values of the space."""
    problems = space_problems(spec.space) or fixed_condition_problems(spec)
    if not problems:
        spec = settled(spec)
    problems += [*_length_problems(spec), *_limit_problems(spec, known)]
    if not any(p.pointer.startswith("/space") for p in problems):
        space = space_of(spec.space)
        problems += [*_sampler_problems(spec, space, known), *_population_problems(spec, space)]
        problems += _goodput_problems(spec, space)
    return problems


def rung_problems(spec: SweepSpec) -> Iterator[FieldProblem]:
    """Of a spec whose jobs are valid: a pruner that looks at no trial before its end."""
    pruner = spelled_out(spec.pruner)
    if pruner is None or pruner.min_samples is None:
        return
    totals = total_range(spec, None)
    if totals is not None and pruner.min_samples >= totals[0]:
        kind = next(iter(spec.model_dump()["pruner"]))
        told = (
            f"nothing would be pruned: a trial ends after {totals[0]:,} samples (seen: {pruner.min_samples:,}); "
            "lower it, leave it out, or write pruner: none"
        )
        yield FieldProblem(f"/pruner/{kind}/min_samples", told)


def _length_problems(spec: SweepSpec) -> Iterator[FieldProblem]:
    if "batch.global_size" not in spec.space:
        return
    told = (
        "a sweep over the batch size needs epochs or samples: with steps, trials would see different amounts of data; "
        "write epochs: 3, say"
    )
    if spec.job.get("steps") is not None:
        yield FieldProblem("/job/steps", told)
    if "steps" in spec.space:
        yield FieldProblem("/space/steps", told)


def _goodput_problems(spec: SweepSpec, space: Space) -> Iterator[FieldProblem]:
    """A batch that moves while a trial trains is not one that the trial was given."""
    batch = spec.job.get("batch")
    given = batch.get("adapt") if isinstance(batch, Mapping) else None
    chosen = [p.distribution for p in space.parameters if p.path == "batch.adapt"]
    values = [option for each in chosen if isinstance(each, Choice) for option in each.options] if chosen else [given]
    if "goodput" not in values:
        return
    remedy = "set batch.adapt to fixed"
    if "batch.global_size" in spec.space:
        told = (
            "batch.adapt=goodput moves the global batch of a trial, so its result tells nothing of the size that it "
            f"began with; {remedy}, or take batch.global_size out of the space"
        )
        yield FieldProblem(place("batch.global_size"), told)
    if spec.population is not None:
        told = (
            f"{spec.population} gives running trials a batch with each of its orders, and batch.adapt=goodput another; "
            f"{remedy}, or leave the population out"
        )
        yield FieldProblem("/population", told)


def _limit_problems(spec: SweepSpec, known: Known) -> Iterator[FieldProblem]:
    if spec.limits.cost is not None and not known.has_prices:
        told = f"{spec.limits.cost} cannot be counted: the settings have no prices; set price_cpu_hour, or use time_s"
        yield FieldProblem("/limits/cost", told)
    for index, sweep in enumerate(spec.warm_start):
        if sweep in spec.warm_start[:index]:
            yield FieldProblem(f"/warm_start/{index}", f"{sweep!r:.80} is listed twice; keep one")


def _sampler_problems(spec: SweepSpec, space: Space, known: Known) -> Iterator[FieldProblem]:
    for package in _PACKAGES[spec.sampler]:
        if not known.is_installed(package):
            told = f"{spec.sampler} needs the package {package}, which the service lacks; use tpe, or install it there"
            yield FieldProblem("/sampler", told)
    if spec.sampler == "grid":
        yield from _grid_problems(space)
    if spec.sampler == "cmaes":
        for p in space.parameters:
            if isinstance(p.distribution, Choice) or p.when:
                what = "conditions" if p.when else "choices"
                yield FieldProblem(place(p.path), f"cmaes knows numbers without {what}; use an int, or the sampler tpe")
        if len(space.parameters) < 2:
            yield FieldProblem("/sampler", "cmaes needs at least two parameters (seen: 1); use tpe")


def _grid_problems(space: Space) -> Iterator[FieldProblem]:
    for p in space.parameters:
        if p.distribution.count() == 0:
            yield FieldProblem(place(p.path), "a grid needs values that can be counted; give a step, or list a choice")
    count = space.count()
    if count is not None and count > MAX_GRID_POINTS:
        told = f"the grid has {count:,} points, more than {MAX_GRID_POINTS:,}; coarsen the space, or use tpe or random"
        yield FieldProblem("/sampler", told)


def _population_problems(spec: SweepSpec, space: Space) -> Iterator[FieldProblem]:
    name = spec.population
    if name is None:
        return
    if spec.pruner != "none":
        told = f"{name} replaces bad trials itself; leave the pruner out, or write pruner: none"
        yield FieldProblem("/pruner", told)
    if spec.promote is not None:
        told = (
            f"{name} changes values on the way, so what it finds is no point that a configuration could hold "
            f"(seen: {spec.promote}); leave it out, or write population: null with a pruner"
        )
        yield FieldProblem("/promote", told)
    for p in space.parameters:
        if p.path not in _POPULATION_PATHS:
            told = (
                f"{name} changes running trials, so it can search optimizer.lr and batch.global_size only; take it out"
            )
            yield FieldProblem(place(p.path), told)
        elif p.when:
            told = f"{name} gives its trials other values while they run, whatever the conditions; take out when"
            yield FieldProblem(place(p.path), told)
        elif name == "pb2" and isinstance(p.distribution, Choice):
            yield FieldProblem(place(p.path), "pb2 searches ranges; write int or uniform bounds, or use pbt")
    if spec.trials > spec.parallel:
        told = f"{name} trains all its trials at once: parallel={spec.parallel} is below trials={spec.trials}; raise it"
        yield FieldProblem("/parallel", told)
    if spec.trials < _LEAST_POPULATION[name]:
        least = _LEAST_POPULATION[name]
        yield FieldProblem(
            "/trials", f"{name} needs at least {least} trials (seen: {spec.trials}); raise it to {least}"
        )
    if (count := space.count()) is not None and spec.trials > count:
        told = (
            f"{name} begins each trial at another point, and the space has {count:,} (seen: {spec.trials}); "
            "lower it, or widen the space"
        )
        yield FieldProblem("/trials", told)
