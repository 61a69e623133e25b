"""A step of ``communication: auto`` without a controller: dense until it is measured, then what the advisor chooses.

The trial in the job, by which a choice that does not pay is taken back, is left out: it is the first choice that shows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist

from workers.advisors import exchange, levels
from workers.advisors.exchange import Change, Link, Situation
from workers.control.compress import SCHEMES
from workers.exchange_options import LEVELS
from workers.measures import SchemeCost
from workers.plan import Exchange
from workers.racks import Topology
from workers.training.exchange.costs import measure_schemes
from workers.training.exchange.gradients import GradientExchange
from workers.training.exchange.registry import scheme_for, scheme_named
from workers.training.exchange.residual import Residual
from workers.training.links import survey
from workers.training.world import World

NUM_MEASURED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    step_s: float
    link: Link
    costs: Mapping[str, SchemeCost]


class Auto:
    """``backward`` fills the gradients; call it on all ranks."""

    def __init__(self, exchange: GradientExchange, world: World, backward: Callable[[], None]) -> None:
        self._exchange, self._world, self._backward = exchange, world, backward
        self._residual = Residual()
        self._scheme = scheme_named("none", self._residual)
        self._costs = measure_schemes(torch.device("cpu"))
        self._topology = _surveyed(world)
        self._told: list[tuple[float, float, float]] = []
        exchange.join(world, self._scheme)

    def step(self) -> None:
        begun_s = time.perf_counter()
        self._exchange.clear()
        self._exchange.arm(lambda: None)
        self._backward()
        took = self._exchange.finish(lambda: None)
        self._residual.commit()
        if len(self._told) < NUM_MEASURED:
            self._told.append((time.perf_counter() - begun_s, took.exchange_s, took.exposed_s))
            if len(self._told) == NUM_MEASURED:
                self._choose()

    def _choose(self) -> None:
        step_s, took_s, waited_s = (median(column) for column in zip(*self._told, strict=True))
        own = _Told(step_s=step_s, link=Link(exchange_s=took_s, exposed_s=waited_s), costs=self._costs)
        of_all = [own] * self._world.size
        dist.all_gather_object(of_all, own)
        least = min(of_all, key=lambda told: told.link.exposed_s)
        tables = [told.costs for told in of_all]
        formats = {name: max((t[name] for t in tables), key=lambda cost: cost.seconds_a_million) for name in tables[0]}
        may_use = tuple(name for name in SCHEMES if self._topology.has_levels or name not in LEVELS)
        advice = exchange.advise(
            Situation(
                scheme="none",
                allowed=may_use,
                costs=levels.costs_of(may_use, formats, self._topology),
                num_ranks=self._world.size,
                num_values=sum(p.numel() for p in self._exchange.parameters),
                step_s=least.step_s,
                link=least.link,
            )
        )
        if self._world.rank == 0:
            print(advice.reason, file=sys.stderr, flush=True)
        if isinstance(advice, Change):
            chosen = Exchange.named(advice.scheme, advice.reason)
            self._scheme = scheme_for(chosen, self._topology.racks, self._world.rank, self._residual)
            self._exchange.join(self._world, self._scheme)


def _surveyed(world: World) -> Topology:
    """What is found goes to standard error: the results have the other."""
    with redirect_stdout(sys.stderr):
        return survey(world, ())
