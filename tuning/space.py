"""The search space of a sweep: parameters, the conditions between them, the points that there are. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from tuning.distributions import Distribution, distribution_of
from tuning.paths import is_free
from tuning.spec_parts import DistributionSpec
from tuning.values import Params, Scalar, same

MAX_GRID_POINTS = 10_000
MAX_COMBINATIONS = 512
"""So many corners are tried out in all combinations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One path that is searched; only where each parameter named in ``when`` has that value."""

    path: str
    distribution: Distribution
    when: Mapping[str, Scalar] = field(default_factory=dict)

    def is_active(self, chosen: Params) -> bool:
        return all(path in chosen and same(chosen[path], value) for path, value in self.when.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Parameters, each after those that its conditions name."""

    parameters: tuple[Parameter, ...]

    def point(self, choose: Callable[[str, Distribution], Scalar]) -> dict[str, Scalar]:
        """Ask for a value of each parameter that is active, given those before it."""
        chosen: dict[str, Scalar] = {}
        for parameter in self.parameters:
            if parameter.is_active(chosen):
                chosen[parameter.path] = choose(parameter.path, parameter.distribution)
        return chosen

    def contains(self, params: Params) -> bool:
        """Whether the point is one of this space: every active parameter, no other, each in its range."""
        active = [p for p in self.parameters if p.is_active(params)]
        return {p.path for p in active} == params.keys() and all(
            p.distribution.contains(params[p.path]) for p in active
        )

    def is_conditional(self) -> bool:
        return any(p.when for p in self.parameters)

    def count(self) -> int | None:
        """How many points there are; None where some parameter is continuous.

        Past ``MAX_GRID_POINTS`` it may be told too low where conditions make too many cases to count.
        """
        if any(p.distribution.count() == 0 for p in self.parameters):
            return None
        return sum(itertools.islice(self._weights(0, {}, 1), MAX_GRID_POINTS + 1))

    def grid(self) -> Iterator[dict[str, Scalar]]:
        """All points in a fixed order. Only where ``count`` is not None; read no more than are wanted."""
        for chosen in self._points(0, {}, lambda p: (p.distribution.at(i) for i in range(p.distribution.count()))):
            yield dict(chosen)

    def corners(self) -> Iterator[dict[str, Scalar]]:
        """Points whose jobs, if all are valid, make every point's job valid.

        Rules of a job spec are bounds, wholeness, and orders between two fields: the bounds of two ranges decide
        them, and each choice by itself. All combinations while they are few, else each value and every pair of
        bounds, with the rest at its first value. What no rule can see (the user's ``config``) varies only where
        conditions hang on it.
        """
        edges = {p.path: self._edges(p) for p in self.parameters}
        some = list(itertools.islice(self._points(0, {}, lambda p: iter(edges[p.path])), MAX_COMBINATIONS + 1))
        return iter(some) if len(some) <= MAX_COMBINATIONS else self._singles_and_pairs(edges)

    def conditions(self, path: str) -> dict[str, Scalar]:
        """What each parameter above this one must be for it to be active."""
        (parameter,) = (p for p in self.parameters if p.path == path)
        above = {k: v for name in parameter.when for k, v in self.conditions(name).items()}
        return {**above, **parameter.when}

    def _edges(self, parameter: Parameter) -> tuple[Scalar, ...]:
        named = [p.when[parameter.path] for p in self.parameters if parameter.path in p.when]
        edges = parameter.distribution.edges()
        if is_free(parameter.path):
            edges = next(((e,) for e in edges if not any(same(e, n) for n in named)), () if named else edges[:1])
        return (*named, *(e for e in edges if not any(same(e, n) for n in named)))

    def _singles_and_pairs(self, edges: Mapping[str, tuple[Scalar, ...]]) -> Iterator[dict[str, Scalar]]:
        ends = {path: _ends(values) for path, values in edges.items()}
        wanted = [{path: value} for path, values in edges.items() for value in values]
        pairs = (
            dict(zip(pair, values, strict=True))
            for pair in itertools.combinations(edges, 2)
            for values in itertools.product(*(ends[path] for path in pair))
        )
        seen = set()
        for fixed in itertools.chain(wanted, pairs):
            full = {k: v for path in fixed for k, v in self.conditions(path).items()} | fixed
            point = self.point(_chooser(full, edges))
            key = tuple((path, repr(value)) for path, value in point.items())
            if key not in seen:
                seen.add(key)
                yield point

    def _points(
        self, index: int, chosen: dict[str, Scalar], values: Callable[[Parameter], Iterator[Scalar]]
    ) -> Iterator[dict[str, Scalar]]:
        if index == len(self.parameters):
            yield chosen
            return
        parameter = self.parameters[index]
        if not parameter.is_active(chosen):
            yield from self._points(index + 1, chosen, values)
            return
        for value in values(parameter):
            yield from self._points(index + 1, {**chosen, parameter.path: value}, values)

    def _weights(self, index: int, chosen: dict[str, Scalar], weight: int) -> Iterator[int]:
        """Numbers of points, one for each way in which the conditions can come out."""
        if index == len(self.parameters):
            yield weight
            return
        parameter = self.parameters[index]
        if not parameter.is_active(chosen):
            yield from self._weights(index + 1, chosen, weight)
            return
        named: list[Scalar] = []
        for value in (p.when[parameter.path] for p in self.parameters if parameter.path in p.when):
            named += [] if any(same(value, n) for n in named) else [value]
        num_others = parameter.distribution.count() - len(named)
        if num_others:
            yield from self._weights(index + 1, chosen, weight * num_others)
        for value in named:
            yield from self._weights(index + 1, {**chosen, parameter.path: value}, weight)


def _ends(values: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    """Of many numbers the least and the greatest: an order between two fields holds for the rest too."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return (min(numbers), max(numbers)) if len(numbers) == len(values) > 2 else values


def _chooser(wanted: Params, edges: Mapping[str, tuple[Scalar, ...]]) -> Callable[[str, Distribution], Scalar]:
    return lambda path, _: wanted[path] if path in wanted else edges[path][0]


def space_of(specs: Mapping[str, DistributionSpec]) -> Space:
    """The space that a spec means, in which ``space_problems`` found none."""
    order = TopologicalSorter({path: tuple(spec.when) for path, spec in specs.items()}).static_order()
    return Space(
        parameters=tuple(
            Parameter(path=path, distribution=distribution_of(specs[path]), when=dict(specs[path].when))
            for path in order
        )
    )
