"""A step of ``communication: auto`` without a controller: dense until it is measured, then what the advisor chooses.

As in a job the choice is on trial first, and taken back where its steps are not as much faster as they must be. What a
job looks at again later is left out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from statistics import median

import torch
import torch.distributed as dist
from torch import nn

from workers.advisors import exchange, levels
from workers.advisors.exchange import Change, Link, Situation
from workers.control.compress import SCHEMES
from workers.exchange_options import LEVELS, bucketed
from workers.plan import Exchange
from workers.racks import Topology
from workers.training.exchange.buckets import cuts
from workers.training.exchange.costs import measure_schemes
from workers.training.exchange.gradients import GradientExchange
from workers.training.exchange.meter import Took
from workers.training.exchange.registry import scheme_for
from workers.training.exchange.residual import Residual
from workers.training.links import survey
from workers.training.world import World

NUM_WARM_UP, NUM_MEASURED = 1, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    step_s: float
    link: Link


class Auto:
    """``loss`` is a round's, ``apply`` what follows its exchange. Made and called on all ranks alike.

    Making it takes the steps by which it chooses; ``name`` is what was chosen.
    """

    def __init__(
        self,
        named_parameters: Sequence[tuple[str, nn.Parameter]],
        world: World,
        loss: Callable[[], torch.Tensor],
        apply: Callable[[GradientExchange], None] = lambda exchange: None,
    ) -> None:
        self._named, self._world, self._loss, self._apply = named_parameters, world, loss, apply
        self._costs, self._topology = measure_schemes(world.device), _surveyed(world)
        self._residual = Residual()
        self._take(Exchange())
        self._choose()

    def step(self) -> Took:
        self._exchange.clear()
        loss = self._loss()
        self._exchange.arm(lambda: None, loss)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        self._exchange.finish(lambda: None)
        took = self._exchange.measure()
        self._apply(self._exchange)
        for state in (self._residual, *self._scheme.staged):
            state.commit()
        return took

    def _take(self, chosen: Exchange) -> None:
        if hasattr(self, "_exchange"):
            self._exchange.remove()
        self.name = chosen.name
        self._exchange = GradientExchange(self._named, 0, bucketed(chosen.name)[1])
        self._residual.lay_out(self._exchange.places)
        self._scheme = scheme_for(chosen, self._topology.racks, self._world.rank, self._residual)
        self._exchange.join(self._world, self._scheme)

    def _choose(self) -> None:
        told = self._measured()
        advice = exchange.advise(self._situation(told))
        verdict = ""
        if isinstance(advice, Change):
            self._take(Exchange.named(advice.scheme, advice.reason))
            gain = told.step_s / self._measured().step_s
            verdict = f"; it made steps {gain:.2f} times as fast"
            if gain < advice.least_kept:
                self._take(Exchange())
        if self._world.rank == 0:
            print(f"auto: {self.name}. {advice.reason}{verdict}", file=sys.stderr, flush=True)

    def _measured(self) -> _Told:
        """Of the rank that waits least, and the link as whoever sees least of it does, as a job's controller has it."""
        seen = list[_Told]()
        for _ in range(NUM_WARM_UP + NUM_MEASURED):
            dist.barrier()
            begun_s = time.perf_counter()
            took = self.step()
            link = Link(
                exchange_s=took.exchange_s, exposed_s=took.exposed_s, wire_s=took.wire_s, backward_s=took.backward_s
            )
            seen.append(_Told(step_s=time.perf_counter() - begun_s, link=link))
        own = _usual(seen[NUM_WARM_UP:])
        of_all = [own] * self._world.size
        dist.all_gather_object(of_all, own)
        least = min(of_all, key=lambda told: told.link.exposed_s)
        wire_s = min(told.link.wire_s for told in of_all if told.link.wire_s is not None)
        step_s = max(told.step_s for told in of_all)
        return _Told(step_s=step_s, link=replace(least.link, wire_s=wire_s))

    def _situation(self, told: _Told) -> Situation:
        tables = [self._costs] * self._world.size
        dist.all_gather_object(tables, self._costs)
        formats = {name: max((t[name] for t in tables), key=lambda cost: cost.seconds_a_million) for name in tables[0]}
        may_use = tuple(name for name in SCHEMES if self._topology.has_levels or name not in LEVELS)
        return Situation(
            scheme=self.name,
            allowed=may_use,
            costs=levels.costs_of(may_use, formats, self._topology),
            num_ranks=self._world.size,
            num_values=sum(p.numel() for p in self._exchange.parameters),
            step_s=told.step_s,
            link=told.link,
            buckets=cuts(self._exchange.parameters),
        )


def _usual(seen: Sequence[_Told]) -> _Told:
    names = ("exchange_s", "exposed_s", "wire_s", "backward_s")
    link = Link(**{name: median(getattr(told.link, name) for told in seen) for name in names})
    return _Told(step_s=median(told.step_s for told in seen), link=link)


def _surveyed(world: World) -> Topology:
    """What is found goes to standard error: the results have the other."""
    with redirect_stdout(sys.stderr):
        return survey(world, ())
