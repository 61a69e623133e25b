"""One round: draw and compute (``part``), exchange, commit. The unit of agreement, redo and commit."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from workers.errors import DivergedError, OutOfMemoryError, UserCodeError, described
from workers.exchange_options import BUCKET_MIB, SMALL_GRADIENT, Options, across_of, bucket_mib_of
from workers.plan import Plan
from workers.status import Phase, RoundRecord
from workers.training import buffers, memory
from workers.training.across import Across, told_apart
from workers.training.back_off import settle
from workers.training.exchange import vector
from workers.training.exchange.gradients import GradientExchange
from workers.training.exchange.registry import scheme_for
from workers.training.exchange.schemes import Scheme
from workers.training.exchange.vector import GlobalSums
from workers.training.gauge_reader import GaugeReader
from workers.training.links import survey
from workers.training.local_steps import LocalSteps
from workers.training.mailbox import Mailbox, Position
from workers.training.micro_tuning import MicroTuning
from workers.training.noise_meter import NoiseMeter
from workers.training.part import CLIP_EPSILON, Part
from workers.training.setup import Setup
from workers.training.spans import RoundCost
from workers.training.state import StepState
from workers.training.world import World

MAX_SKIPPED = 20
LEAST_RANKS = 3
"""Of which one may share a rack with another and one not."""


class BrokenCommitError(Exception):
    """The optimizer failed after the last collective: parameters are half updated, and this worker must end.

    Its cause is what is to be told.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """Whether the summed gradient counts, what ``factor`` makes of it, and under what lr and loss scale it came.

    ``counted`` is how many samples' progress the round makes.
    """

    is_finite: bool
    grad_norm: float
    factor: float
    lr: float
    counted: float
    loss_scale: float | None


class Rounds:
    """Draws, computes, exchanges and commits, one round a call; all members of the world call it together."""

    def __init__(self, setup: Setup, mailbox: Mailbox) -> None:
        self._setup = setup
        self._state = setup.state
        self._mailbox = mailbox
        self._gauges = GaugeReader(setup.device)
        self._noise = NoiseMeter(setup.state, is_by_length=setup.train_dealer is not None)
        self._world: World | None = None
        self._scheme: Scheme | None = None
        self._asked: tuple[str, Options] = ("", ())
        self._racks: tuple[int, ...] | None = None
        self._across: Across | None = None
        self._exchange: GradientExchange | None = None
        self._form = (-1, BUCKET_MIB)
        self._crossed_bytes = 0
        self._committed_s = time.perf_counter()

    def join(self, world: World, plan: Plan) -> None:
        """Train in this world from now on; its members hold the same state."""
        self._world = world
        self._setup.micro.regrouped()
        self.adapt(plan)
        self._committed_s = time.perf_counter()

    def adapt(self, plan: Plan) -> None:
        """Take over the sections of a plan that has come into force."""
        if self._setup.precision.apply(plan.precision):
            self._setup.micro.again()
            if (dealer := self._setup.train_dealer) is not None and dealer.passes is not None:
                dealer.passes.again()
        if plan.most_micro is not None and isinstance(self._setup.micro, MicroTuning):
            self._setup.micro.cap(max(plan.most_micro, self._setup.pass_note.passed))
        self._choose_scheme(plan)
        self._state.scaler = self._setup.precision.scaler(self._state.scaler)
        self._setup.feed.interrupted()

    def _choose_scheme(self, plan: Plan) -> None:
        """What is to be known of the racks all members measure together, once a group."""
        assert self._world is not None
        exchange = plan.exchange
        asked = (exchange.scheme, exchange.options)
        if self._scheme is not None and self._asked == asked:
            return
        if self._racks is None and (across_of(exchange.options) is not None or self._may_use_racks(self._world)):
            topology = survey(self._world, plan.labels)
            self._mailbox.surveyed(topology)
            self._racks, self._across = topology.racks, told_apart(self._world, topology.racks)
        racks = self._racks or (0,) * self._world.size
        self._scheme, self._asked = scheme_for(exchange, racks, self._world.rank, self._state.residual), asked

    def _may_use_racks(self, world: World) -> bool:
        """Whether ``auto`` may come to send these gradients over racks; the same on all ranks."""
        num_values = sum(p.numel() for p in self._state.trained.values())
        is_open = self._setup.spec.exchange.scheme == "auto" and self._setup.spec.resources.are_cpus_alone
        return is_open and world.size >= LEAST_RANKS and num_values >= SMALL_GRADIENT

    def restart_clock(self) -> None:
        """Leave what was done between rounds (evaluating, saving) out of the next one's seconds."""
        self._committed_s = time.perf_counter()

    def leave(self) -> None:
        """The world is gone: back to the last commit."""
        if self._exchange is not None:
            self._exchange.drop()
        for staged in self._staged():
            staged.rollback()
        self._world = self._scheme = self._racks = self._across = None
        self._setup.feed.drop()

    def run(self, plan: Plan) -> RoundRecord | None:
        """One round under ``plan``; None where the same samples are to be drawn again.

        Raises WorldError, GroupLeftError, MemoryInExchangeError, BrokenCommitError, errors of the
        tree, and whatever the user's code raises; before a commit in all cases but BrokenCommitError.
        """
        assert self._world is not None
        exchange = self._ready_exchange()
        part, across_bytes = self._part(exchange, plan, self._world.rank), self._across_bytes()
        self._state.residual.begin(part.gradient_scale)
        if isinstance(part, Part):
            self._noise.compute(part, exchange)
        else:
            part.compute()
        self._state.check_others()
        self._mailbox.set_phase(Phase.EXCHANGE)
        try:
            exchange.finish(part.fill)
        except (RuntimeError, MemoryError) as error:
            part.lacked(error)
            raise
        summed = exchange.tail.read_head()
        self._mailbox.check()  # an accelerator's group that was aborted ends its collectives without an error
        took, self._crossed_bytes = exchange.measure(), self._across_bytes() - across_bytes
        part.times.exchange_s, part.times.exposed_s = took.exchange_s, took.exposed_s
        part.measure()
        sums = vector.decode(summed, self._state.user_names)
        part.check_division(sums)
        self._mailbox.settle(sums.num_holding)
        self._mailbox.set_phase(Phase.COMMIT)
        self._stage_buffers(exchange, part, sums)
        outcome = self._judge(exchange, part, sums)
        if outcome.is_finite:
            self._commit(part, sums, outcome)
        elif self._is_redrawn(sums, outcome):
            return None
        self._setup.feed.committed()
        return self._advance(exchange, part, sums, outcome)

    def _part(self, exchange: GradientExchange, plan: Plan, rank: int) -> Part | LocalSteps:
        kind = LocalSteps if plan.exchange.scheme == "local_steps" else Part
        return kind(self._setup, self._mailbox, exchange, plan, rank)

    def _across_bytes(self) -> int:
        return 0 if self._across is None else self._across.sent_bytes()

    def _staged(self) -> list[StepState]:
        return [*self._state.staged(), *(() if self._scheme is None else self._scheme.staged)]

    def _ready_exchange(self) -> GradientExchange:
        assert self._world is not None
        assert self._scheme is not None
        form = (self._state.buffers.num_values, bucket_mib_of(self._asked[1]))
        if self._exchange is None or self._form != form:
            untold_bytes = 0
            if self._exchange is not None:
                untold_bytes = self._exchange.untold_bytes
                self._exchange.remove()
                self._exchange = None  # before its memory is taken again
            # Those that code has frozen meanwhile too: on other ranks they may not be, and not for good.
            self._exchange, self._form = GradientExchange([*self._state.trained.items()], *form), form
            self._exchange.untold_bytes = untold_bytes
        self._state.residual.lay_out(self._exchange.places)
        self._exchange.join(self._world, self._scheme)
        self._scheme.begin(self._state.round)
        return self._exchange

    def _stage_buffers(self, exchange: GradientExchange, part: Part | LocalSteps, sums: GlobalSums) -> None:
        """Stage what the exchange brought; where a rank saw other buffers change, agree on those besides."""
        tracked = self._state.buffers
        if not sums.has_changed_buffers:
            tracked.stage(exchange.tail.extra)
            return
        assert self._world is not None
        seen = self._world.agree(buffers.mark(tracked.names, tracked.changed()))
        tracked.track(name for name, num_ranks in zip(tracked.names, seen, strict=True) if num_ranks > 0)
        place = torch.zeros(tracked.num_values, dtype=torch.float64, device=self._setup.device)
        tracked.encode(part.share, place)
        self._world.sum(place)
        tracked.stage(place)

    def _judge(self, exchange: GradientExchange, part: Part | LocalSteps, sums: GlobalSums) -> _Outcome:
        """Whether the summed gradient counts, and what makes it the mean gradient, clipped."""
        scaler = self._state.scaler
        expected = part.size * self._state.units_per_sample
        factor = expected / sums.weight / part.gradient_scale if sums.weight > 0 else math.nan
        grad_norm = exchange.norm() * factor
        is_finite = math.isfinite(grad_norm) and math.isfinite(sums.loss)
        if scaler is not None:
            scaler.stage(is_finite)
        if is_finite:
            self._state.residual.came_to(factor)
            self._noise.stage(exchange, sums, part.plan, factor, grad_norm)
        if part.clip_norm is not None and is_finite:
            factor *= min(1.0, part.clip_norm / (grad_norm + CLIP_EPSILON))
        lr, noise_scale = part.plan.lr, sums.noise_scale
        return _Outcome(
            is_finite=is_finite,
            grad_norm=grad_norm,
            factor=factor,
            lr=lr.at(self._state.cursor, self._setup.total_samples, part.plan.global_batch, noise_scale),
            counted=lr.counted(part.size, noise_scale),
            loss_scale=None if scaler is None else scaler.scale,
        )

    def _commit(self, part: Part | LocalSteps, sums: GlobalSums, outcome: _Outcome) -> None:
        state = self._state
        started_s = time.perf_counter()
        try:
            part.update(sums, outcome.factor, outcome.lr)
            for staged in self._staged():
                staged.commit()
        except (Exception, SystemExit) as error:
            raise BrokenCommitError(f"the optimizer step failed: {described(error)}") from self._cause(error)
        part.times.optimizer_s += time.perf_counter() - started_s
        state.num_skipped = 0
        state.units_per_sample = sums.weight / part.size

    def _cause(self, error: BaseException) -> BaseException:
        """What to tell of an error in mid-commit: where memory ran out, for what, and what to do."""
        if not memory.is_out_of_memory(error):
            return error
        limit = memory.told_limit(self._setup.spec.resources)
        lack = OutOfMemoryError(
            f"memory ran out in the optimizer's step ({limit}): {memory.told_lack(error)}; "
            "give workers more memory, use an optimizer that keeps less, or make the model smaller"
        )
        lack.__cause__ = error
        return lack

    def _is_redrawn(self, sums: GlobalSums, outcome: _Outcome) -> bool:
        """Not finite: draw the same samples again at a lower loss scale, or else pass over them.

        Raises what ``_skip`` does.
        """
        assert self._scheme is not None
        state, scaler = self._state, self._state.scaler
        may_redraw = scaler is not None and not scaler.is_at_minimum and sums.weight > 0
        changed: list[StepState] = [state.buffers, state.residual, state.outer, *self._scheme.staged]
        for staged in changed:
            staged.rollback()
        if scaler is not None:
            scaler.commit()
        if may_redraw:
            state.num_redraws += 1
            return True
        self._skip(sums, outcome)
        return False

    def _skip(self, sums: GlobalSums, outcome: _Outcome) -> None:
        """Count a round that changes nothing, and tell the first on end.

        Raises UserCodeError, DivergedError where they are too many, or all that the job had.
        """
        state = self._state
        told = f"last loss {sums.mean_loss:g}, gradient norm {outcome.grad_norm:g}, round {state.round + 1}"
        if state.num_skipped == 0:
            print(f"a step changes nothing, as its loss or its gradient is not finite ({told})", flush=True)
        num_skipped = state.num_skipped + 1
        is_all = num_skipped > state.round and state.cursor + outcome.counted >= self._setup.total_samples
        if (num_skipped >= MAX_SKIPPED or is_all) and sums.weight == 0:
            raise UserCodeError(
                f"weight returned 0 for all micro-batches of a step, and no step of the last {num_skipped} could be "
                f"taken (round {state.round + 1}); let it return how many units the loss is a mean over, and see that "
                "a batch has some"
            )
        if num_skipped >= MAX_SKIPPED or is_all:
            raise DivergedError(
                f"the loss or its gradient was not finite for {num_skipped} steps on end ({told}); "
                "lower optimizer.lr, set optimizer.clip_norm, or use precision fp32"
            )
        state.num_skipped = num_skipped

    def _advance(
        self, exchange: GradientExchange, part: Part | LocalSteps, sums: GlobalSums, outcome: _Outcome
    ) -> RoundRecord:
        """Count the round and describe it."""
        state, plan = self._state, part.plan
        assert state.lineage is not None
        state.round += 1
        state.advance(part.size, outcome.counted)
        state.num_redraws = 0
        state.generation = plan.generation
        is_finished = state.cursor >= self._setup.total_samples
        self._mailbox.moved(
            Position(lineage=state.lineage, round=state.round, cursor=state.cursor, is_finished=is_finished)
        )
        return RoundRecord(
            lineage=state.lineage,
            round=state.round,
            generation=plan.generation,
            plan_id=plan.id,
            cursor=state.cursor,
            samples=part.size,
            time=time.time(),
            values=self._values(exchange, part, sums, outcome),
            is_skipped=not outcome.is_finite,
            is_trial=sums.is_trial,
            num_passes=part.num_passes,
            num_steps=part.num_steps,
            tokens=sums.tokens,
            noise_bounds=self._state.noise.bounds(sums.samples) if sums.noise_pieces > 1 else None,
        )

    def _values(
        self, exchange: GradientExchange, part: Part | LocalSteps, sums: GlobalSums, outcome: _Outcome
    ) -> dict[str, float]:
        """The round's telemetry."""
        step_s, gauges = self._lap(part), self._gauges
        if isinstance(part, Part):
            self._noise.spent(part, step_s)
        values = {
            "lr": outcome.lr,
            "global_batch": float(sums.samples),  # as drawn, so that a step that came short shows
            "micro_batch": float(part.micro),
            "workers": float(part.plan.num_members),
            "samples_per_s": part.size / max(step_s, 1e-9),
            "step_s": step_s,
            "memory_bytes": float(gauges.memory_bytes),
            **part.times.values(),
            **exchange.values(part.num_steps),
        }
        if self._across is not None:
            values["wire_bytes_across"] = float(self._crossed_bytes)
        if outcome.is_finite:
            values["loss"], values["grad_norm"] = sums.mean_loss, outcome.grad_norm
            if sums.noise_pieces > 1 and (noise_scale := self._state.noise.value(sums.samples)) is not None:
                values["noise_scale"] = noise_scale
        if gauges.gpu_utilisation is not None:
            values["gpu_utilisation"] = gauges.gpu_utilisation
        if outcome.loss_scale is not None:
            values["loss_scale"] = outcome.loss_scale
        if sums.useful_tokens is not None:
            values["useful_tokens"] = sums.useful_tokens
        for name, value in sums.user.items():
            # Of a step that counts it is a result that this is no number; of one that does not, like its loss, none.
            if outcome.is_finite or math.isfinite(value):
                values[f"user.{name}"] = value / sums.weight
        return values

    def _lap(self, part: Part | LocalSteps) -> float:
        """Seconds since the last commit; tells the mailbox what they went into on this rank."""
        assert self._world is not None
        now_s, times, gauges = time.perf_counter(), part.times, self._gauges
        step_s, self._committed_s = now_s - self._committed_s, now_s
        if gauges.is_due():
            if (choice := self._setup.micro.watch()) is not None:
                settle(self._setup, self._mailbox, choice)
            self._mailbox.gauge(gauges.gauges(part.micro, self._setup.micro.footprint()))
        cost = RoundCost(
            step_s=step_s,
            data_s=times.data_s,
            compute_s=times.compute_s,
            exposed_s=times.exposed_s,
            optimizer_s=times.optimizer_s,
            memory_bytes=gauges.memory_bytes,
            gpu_utilisation=gauges.gpu_utilisation,
        )
        own = part.own_cost()
        self._mailbox.spent(self._world.rank, time.time(), cost, None if part.is_way_on_trial else own)
        if own is not None:
            self._setup.feed.spent(times.data_s / part.num_steps, times.compute_s / part.num_steps, own.samples)
        return step_s
