"""A round of several steps, each of them this rank's own: what they changed is exchanged in place of gradients."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from workers.plan import Plan
from workers.training.dealer import check_division
from workers.training.draw import round_size
from workers.training.exchange.gradients import GradientExchange
from workers.training.exchange.vector import GlobalSums, LocalSums, NoiseSums
from workers.training.loads import OwnCost
from workers.training.mailbox import Mailbox
from workers.training.part import CLIP_EPSILON, Part, fill_tail
from workers.training.round_times import RoundTimes
from workers.training.setup import Setup


class LocalSteps:
    """What this rank draws of the batches of a round, ``size`` samples in all; to a round what a ``Part`` is.

    A step is the optimizer's by the mean gradient of the rank's own part of a batch, clipped by its own norm; a rank
    without samples in it takes none. Where a gradient is not finite the rank stops there, and all redo or pass over the
    round. Gradients are told no norm but that of what all changed, and their noise is not measured.
    """

    gradient_scale = 1.0
    clip_norm: float | None = None

    def __init__(self, setup: Setup, mailbox: Mailbox, exchange: GradientExchange, plan: Plan, rank: int) -> None:
        self._setup, self._state, self._mailbox, self._exchange = setup, setup.state, mailbox, exchange
        self.plan, self._rank = plan, rank
        self.size = round_size(setup, plan, setup.state.cursor)
        self._parts: list[Part] = []
        self.sums = LocalSums()
        self.times = RoundTimes()

    @property
    def num_steps(self) -> int:
        """Steps of the round, the same on all ranks."""
        return -(-self.size // self.plan.global_batch)

    @property
    def micro(self) -> int:
        """The largest micro-batch in samples."""
        return max(part.micro for part in self._parts)

    @property
    def num_passes(self) -> int:
        """Forward passes of all steps."""
        return sum(part.num_passes for part in self._parts)

    @property
    def is_way_on_trial(self) -> bool:
        """Whether ways to read were, in any of the steps."""
        return any(part.is_way_on_trial for part in self._parts)

    @property
    def share(self) -> float:
        """This rank's part of the round's samples; 0 where it has no units that count."""
        return self.sums.samples / self.size if self.sums.weight > 0 else 0.0

    def compute(self) -> None:
        """Take the steps, and put what they changed where gradients are. Raises as ``Part.compute``."""
        part, is_finite = self._begin(0), True
        with self._leaving("a copy of the parameters and of what the optimizer holds"):
            self._state.outer.begin(self._exchange.parameters)
        while True:
            part.compute()
            with self._leaving("the optimizer's step"):
                is_finite = self._step(part)
            part.measure()
            self._count(part)
            offset = part.offset + part.size
            if not is_finite or offset >= self.size:
                break
            part = self._begin(offset)
        drawn = self.sums.weight / (self.size * self._state.units_per_sample)
        with self._leaving("what the steps changed"):
            self._exchange.put([difference.mul_(drawn) for difference in self._state.outer.differences()])
        if not is_finite:
            self.sums.loss = math.nan

    def _begin(self, offset: int) -> Part:
        part = Part(self._setup, self._mailbox, self._exchange, self.plan, self._rank, offset=offset, is_alone=True)
        self._parts.append(part)
        return part

    @contextmanager
    def _leaving(self, what: str) -> Iterator[None]:
        """Leave the round where memory runs out for ``what``, which is undone with it."""
        try:
            yield
        except (RuntimeError, MemoryError, OSError) as error:
            self._parts[-1].lacked(error, what)
            raise

    def own_cost(self) -> OwnCost | None:
        """What a step took this rank by itself in the mean, None where that was not the usual."""
        costs = [cost for part in self._parts if (cost := part.own_cost()) is not None]
        num = len(self._parts)
        if len(costs) < num:
            return None
        assert self._exchange.took is not None
        wire_s = self._exchange.took.wire_s
        return OwnCost(
            plan_id=self.plan.id,
            samples=round(sum(cost.samples for cost in costs) / num),
            seconds=sum(cost.seconds for cost in costs) / num,
            tokens=sum(cost.tokens for cost in costs) / num,
            exchange_s=self.times.exchange_s / num,
            exposed_s=self.times.exposed_s / num,
            wire_s=None if wire_s is None else wire_s / num,
        )

    def measure(self) -> None:
        """Each step's was, at its end."""

    def fill(self) -> None:
        """Write this rank's part of the exchange's tail."""
        fill_tail(self._setup, self._mailbox, self._exchange, self.sums, NoiseSums(), self.size, self.share)

    def check_division(self, summed: GlobalSums) -> None:
        """Check that all ranks divided these batches alike. Raises DataError where their lengths differ.

        Where one of them stopped early they did not.
        """
        if math.isfinite(summed.loss):
            what = f"the round's {self.size} samples"
            check_division(self.sums.division, summed.division, self.plan.num_members, what)

    def lacked(self, error: Exception) -> None:
        """As ``Part.lacked``."""
        self._parts[-1].lacked(error)

    def update(self, sums: GlobalSums, factor: float, lr: float) -> None:
        """The step of all by the mean of what they changed, which ``factor`` makes of the sum; as ``Part.update``."""
        options = dict(self.plan.exchange.options)
        if factor != 1.0:
            self._exchange.scale(factor)
        self._state.outer.step(float(options["outer_lr"]), float(options["outer_momentum"]))

    def _step(self, part: Part) -> bool:
        """Step by this rank's own gradient; whether it is finite. Raises whatever the optimizer raises."""
        weight = part.sums.weight
        if weight <= 0:
            return True
        started_s = time.perf_counter()
        factor = part.expected_weight / weight / part.gradient_scale
        norm = self._exchange.norm() * factor
        if not math.isfinite(norm):
            return False
        if part.clip_norm is not None:
            factor *= min(1.0, part.clip_norm / (norm + CLIP_EPSILON))
        self._exchange.leave_out_unused_here()
        if factor != 1.0:
            self._exchange.scale(factor)
        setup, cursor = self._setup, self._state.cursor + part.offset
        lr = self.plan.lr.at(cursor, setup.total_samples, self.plan.global_batch)
        self._state.step(lr, setup.spec.seed, part.offset)
        part.times.optimizer_s = time.perf_counter() - started_s
        return True

    def _count(self, part: Part) -> None:
        self.sums.join(part.sums)
        for each in fields(RoundTimes):
            setattr(self.times, each.name, getattr(self.times, each.name) + getattr(part.times, each.name))
