"""One round: draw, compute, exchange, commit. The unit of agreement, redo and commit."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from workers.errors import DivergedError, OutOfMemoryError, UserCodeError
from workers.plan import Plan
from workers.status import Phase, RoundRecord
from workers.training import batching, buffers, memory
from workers.training.exchange import vector
from workers.training.exchange.gradients import GradientExchange
from workers.training.exchange.schemes import Scheme, scheme_named
from workers.training.exchange.vector import GlobalSums, LocalSums
from workers.training.mailbox import Mailbox, Position
from workers.training.setup import Setup
from workers.training.signals import GaugeReader, RoundTimes
from workers.training.spans import RoundCost
from workers.training.world import World

MAX_SKIPPED = 20
_CLIP_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ has it


class MemoryInExchangeError(OutOfMemoryError):
    """Memory ran out after gradients of this round had left: the round cannot be redone by this rank alone."""


class BrokenCommitError(Exception):
    """The optimizer failed after the last collective: parameters are half updated, and this worker must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """This rank's part [begin, end) of a round's batch of ``size`` samples, in positions within the batch."""

    plan: Plan
    begin: int
    end: int
    size: int
    micro: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    grad_norm: float
    factor: float
    is_finite: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Applied:
    """The learning rate and loss scale under which a round ran."""

    lr: float
    loss_scale: float | None


class Rounds:
    """Draws, computes, exchanges and commits, one round a call; all members of the world call it together."""

    def __init__(self, setup: Setup, mailbox: Mailbox) -> None:
        self._setup = setup
        self._state = setup.state
        self._mailbox = mailbox
        self._gauges = GaugeReader(setup.device)
        self._world: World | None = None
        self._scheme: Scheme | None = None
        self._exchange: GradientExchange | None = None
        self._num_extra = -1
        self._sums = LocalSums()
        self._draw: Draw | None = None
        self._times = RoundTimes()
        self._committed_s = time.perf_counter()

    def join(self, world: World, plan: Plan) -> None:
        """Train in this world from now on; its members hold the same state."""
        self._world, self._scheme = world, scheme_named(plan.exchange.scheme)
        self.adapt(plan)
        self._committed_s = time.perf_counter()

    def adapt(self, plan: Plan) -> None:
        """Take over the sections of a plan that has come into force."""
        self._setup.precision.apply(plan.precision)
        self._state.scaler = self._setup.precision.scaler(self._state.scaler)

    def restart_clock(self) -> None:
        """Leave what was done between rounds (evaluating, saving) out of the next one's seconds."""
        self._committed_s = time.perf_counter()

    def leave(self) -> None:
        """The world is gone: back to the last commit."""
        if self._exchange is not None:
            self._exchange.drop()
        self._world = self._scheme = None
        self._sums = LocalSums()
        for staged in self._state.staged():
            staged.rollback()

    def run(self, plan: Plan) -> RoundRecord | None:
        """One round under ``plan``; None where the same samples are to be drawn again.

        Raises WorldError, GroupLeftError, MemoryInExchangeError, BrokenCommitError, errors of the
        tree, and whatever the user's code raises; before a commit in all cases but BrokenCommitError.
        """
        self._times = RoundTimes()
        exchange = self._ready_exchange()
        draw = self._compute(plan, exchange)
        self._mailbox.set_phase(Phase.EXCHANGE)
        times = self._times
        times.exchange_s, times.exposed_s = exchange.finish(self._fill)
        summed = exchange.tail.read_head()
        self._mailbox.check()  # an accelerator's group that was aborted ends its collectives without an error
        sums = vector.decode(summed, self._state.user_names)
        self._mailbox.settle(sums.num_holding)
        self._mailbox.set_phase(Phase.COMMIT)
        self._stage_buffers(exchange, sums)
        outcome = self._judge(exchange, draw, sums)
        if outcome.is_finite:
            return self._commit(exchange, draw, sums, outcome)
        return self._pass_over(draw, sums, outcome)

    def _ready_exchange(self) -> GradientExchange:
        assert self._world is not None
        assert self._scheme is not None
        num_extra = self._state.buffers.num_values
        if self._exchange is None or self._num_extra != num_extra:
            if self._exchange is not None:
                self._exchange.remove()
            named = [(n, p) for n, p in self._state.model.named_parameters() if p.requires_grad]
            self._exchange, self._num_extra = GradientExchange(named, num_extra), num_extra
        self._exchange.join(self._world, self._scheme)
        return self._exchange

    def _compute(self, plan: Plan, exchange: GradientExchange) -> Draw:
        """This rank's gradients, in micro-batches that fit its memory."""
        assert self._world is not None
        size = min(plan.global_batch, self._setup.total_samples - self._state.cursor)
        begin, end = batching.own_part(plan, self._world.rank, size)
        while True:
            micro = self._setup.micro.within(end - begin)
            draw = self._draw = Draw(plan=plan, begin=begin, end=end, size=size, micro=micro)
            try:
                self._accumulate(draw, exchange)
                return draw
            except (RuntimeError, MemoryError, OSError, OutOfMemoryError) as error:
                if not memory.is_out_of_memory(error):
                    raise
                self._back_off(error, micro, exchange)
            # Only here, after the exception, are the frames gone that held its activations.
            self._state.buffers.rollback()

    def _accumulate(self, draw: Draw, exchange: GradientExchange) -> None:
        exchange.clear()
        self._sums = LocalSums()
        for begin, end in batching.pieces(draw.begin, draw.end, draw.micro):
            self._micro_batch(draw, exchange, begin, end)
        if self._sums.names is not None:
            self._state.user_names = self._sums.names

    def _micro_batch(self, draw: Draw, exchange: GradientExchange, begin: int, end: int) -> None:
        setup, state, times = self._setup, self._state, self._times
        self._mailbox.check()
        self._mailbox.set_phase(Phase.DATA)
        started_s = time.perf_counter()
        batching.seed_all(setup.spec.seed, state.round, begin)
        batch = setup.train.batch(setup.order.indexes(state.cursor + begin, state.cursor + end).tolist())
        drawn_s = time.perf_counter()
        times.data_s += drawn_s - started_s
        self._mailbox.set_phase(Phase.COMPUTE)
        weight = float(end - begin) if setup.task.weight is None else _checked_weight(setup.task.weight(batch))
        if weight > 0:
            with setup.precision.computing():
                loss, values = _checked_loss(setup.task.loss(state.model, batch))
            self._sums.add(loss, weight, end - begin, values)
            scale = 1.0 if state.scaler is None else state.scaler.scale
            if end == draw.end:
                exchange.arm(self._fill)
            # In units of the last round, so that what comes back is the mean already as long as they stay.
            factor = weight / (draw.size * state.units_per_sample) * scale
            torch.autograd.backward(loss, torch.full_like(loss, factor))
        times.compute_s += time.perf_counter() - drawn_s

    def _fill(self) -> None:
        """Write this rank's part of the tail: the last of its gradients are about to leave."""
        exchange, sums, draw, tracked = self._exchange, self._sums, self._draw, self._state.buffers
        assert exchange is not None
        assert draw is not None
        has_part = sums.weight > 0
        num_unused = exchange.write_used()
        is_last = self._state.cursor + draw.size >= self._setup.total_samples  # a pending plan lapses there
        num_holding = 0 if is_last else self._mailbox.count()
        num_changed = len(tracked.changed())
        exchange.tail.write_head(vector.encode(sums, num_holding, num_unused if has_part else 0, num_changed))
        tracked.encode((draw.end - draw.begin) / draw.size if has_part else 0.0, exchange.tail.extra)

    def _back_off(self, error: Exception, tried: int, exchange: GradientExchange) -> None:
        """Choose a smaller micro-batch after a lack of memory, or say why there is none."""
        has_launched = exchange.has_launched
        if not self._setup.micro.halve(tried):
            raise self._too_big(tried, error) from error
        print(f"out of memory at {tried} samples a forward pass; going on with {tried // 2} ({error})", flush=True)
        self._mailbox.set_micro_size(tried // 2)
        if has_launched:
            raise MemoryInExchangeError(
                f"memory ran out at {tried} samples a forward pass, after gradients had left; "
                f"the round is tried again with {tried // 2}"
            ) from error

    def _too_big(self, tried: int, error: Exception) -> OutOfMemoryError:
        model, limit = self._state.model, self._setup.spec.resources.memory_bytes
        num_bytes = sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])
        samples = "one sample" if tried == 1 else f"batch.micro_size={tried} samples"
        remedy = "" if tried == 1 else "set batch.micro_size to auto or lower it, "
        return OutOfMemoryError(
            f"{samples} of {type(model).__name__} ({num_bytes} bytes of parameters and buffers) does not fit into a "
            f"worker's memory (resources.memory_bytes={limit}): {error}; {remedy}give workers more memory, "
            "or make the model or its samples smaller"
        )

    def _stage_buffers(self, exchange: GradientExchange, sums: GlobalSums) -> None:
        """Stage what the exchange brought; where a rank saw other buffers change, agree on those besides."""
        tracked = self._state.buffers
        if not sums.has_changed_buffers:
            tracked.stage(exchange.tail.extra)
            return
        assert self._world is not None
        assert self._draw is not None
        seen = self._world.agree(buffers.mark(tracked.names, tracked.changed()))
        tracked.track(name for name, num_ranks in zip(tracked.names, seen, strict=True) if num_ranks > 0)
        place = torch.zeros(tracked.num_values, dtype=torch.float64, device=self._setup.device)
        has_part = self._sums.weight > 0
        tracked.encode((self._draw.end - self._draw.begin) / self._draw.size if has_part else 0.0, place)
        self._world.sum(place)
        tracked.stage(place)

    def _judge(self, exchange: GradientExchange, draw: Draw, sums: GlobalSums) -> _Outcome:
        """Whether the summed gradient counts, and what makes it the mean gradient, clipped."""
        scaler = self._state.scaler
        scale = 1.0 if scaler is None else scaler.scale
        expected = draw.size * self._state.units_per_sample
        factor = expected / sums.weight / scale if sums.weight > 0 else math.nan
        grad_norm = exchange.norm() * factor
        is_finite = math.isfinite(grad_norm) and math.isfinite(sums.loss)
        if scaler is not None:
            scaler.stage(is_finite)
        clip = self._setup.spec.optimizer.clip_norm
        if clip is not None and is_finite:
            factor *= min(1.0, clip / (grad_norm + _CLIP_EPSILON))
        return _Outcome(grad_norm=grad_norm, factor=factor, is_finite=is_finite)

    def _commit(self, exchange: GradientExchange, draw: Draw, sums: GlobalSums, outcome: _Outcome) -> RoundRecord:
        state = self._state
        started_s = time.perf_counter()
        applied = self._applied(draw.plan)
        try:
            if sums.has_unused:
                exchange.leave_out_unused()
            if outcome.factor != 1.0:
                exchange.scale(outcome.factor)
            state.set_lr(applied.lr)
            state.optimizer.step()
            for staged in state.staged():
                staged.commit()
        except (Exception, SystemExit) as error:
            raise BrokenCommitError(f"the optimizer step failed: {type(error).__name__}: {error}") from error
        self._times.optimizer_s = time.perf_counter() - started_s
        state.num_skipped = 0
        state.units_per_sample = sums.weight / draw.size
        return self._advance(draw, sums, outcome, applied)

    def _pass_over(self, draw: Draw, sums: GlobalSums, outcome: _Outcome) -> RoundRecord | None:
        """Not finite: draw the same samples again at a lower loss scale, or pass over them.

        Raises DivergedError when too many rounds on end were passed over.
        """
        state, scaler = self._state, self._state.scaler
        may_redraw = scaler is not None and not scaler.is_at_minimum and sums.weight > 0
        applied = self._applied(draw.plan)
        state.buffers.rollback()
        if scaler is not None:
            scaler.commit()
        if may_redraw:
            state.num_redraws += 1
            return None
        if state.num_skipped + 1 >= MAX_SKIPPED:
            raise DivergedError(
                f"the loss or its gradient was not finite for {MAX_SKIPPED} steps on end "
                f"(last loss {sums.mean_loss:g}, gradient norm {outcome.grad_norm:g}, round {state.round + 1}); "
                "lower optimizer.lr, set optimizer.clip_norm, or use precision fp32"
            )
        state.num_skipped += 1
        return self._advance(draw, sums, outcome, applied)

    def _applied(self, plan: Plan) -> _Applied:
        scaler = self._state.scaler
        return _Applied(
            lr=plan.lr.at(self._state.cursor, self._setup.total_samples, plan.global_batch),
            loss_scale=None if scaler is None else scaler.scale,
        )

    def _advance(self, draw: Draw, sums: GlobalSums, outcome: _Outcome, applied: _Applied) -> RoundRecord:
        """Count the round and describe it."""
        state, plan = self._state, draw.plan
        assert state.lineage is not None
        state.round += 1
        state.cursor += draw.size
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
            samples=draw.size,
            time=time.time(),
            values=self._values(draw, sums, outcome, applied),
            is_skipped=not outcome.is_finite,
        )

    def _values(self, draw: Draw, sums: GlobalSums, outcome: _Outcome, applied: _Applied) -> dict[str, float]:
        """The round's telemetry."""
        assert self._exchange is not None
        assert self._world is not None
        now_s = time.perf_counter()
        step_s, self._committed_s = now_s - self._committed_s, now_s
        if self._gauges.is_due():
            self._mailbox.gauge(self._gauges.gauges(draw.micro))
        self._mailbox.spent(self._world.rank, time.time(), self._cost(step_s))
        values = {
            "lr": applied.lr,
            "global_batch": float(draw.plan.global_batch),
            "micro_batch": float(draw.micro),
            "workers": float(draw.plan.num_members),
            "samples_per_s": draw.size / max(step_s, 1e-9),
            "step_s": step_s,
            "wire_bytes": self._exchange.wire_bytes,
            "memory_bytes": float(self._gauges.memory_bytes),
            **self._times.values(),
        }
        if outcome.is_finite:
            values["loss"], values["grad_norm"] = sums.mean_loss, outcome.grad_norm
        if self._gauges.gpu_utilisation is not None:
            values["gpu_utilisation"] = self._gauges.gpu_utilisation
        if applied.loss_scale is not None:
            values["loss_scale"] = applied.loss_scale
        for name, value in sums.user.items():
            if math.isfinite(value):
                values[f"user.{name}"] = value / sums.weight
        return values

    def _cost(self, step_s: float) -> RoundCost:
        times, gauges = self._times, self._gauges
        return RoundCost(
            step_s=step_s,
            data_s=times.data_s,
            compute_s=times.compute_s,
            exposed_s=times.exposed_s,
            optimizer_s=times.optimizer_s,
            memory_bytes=gauges.memory_bytes,
            gpu_utilisation=gauges.gpu_utilisation,
        )


def _checked_loss(result: object) -> tuple[torch.Tensor, Mapping[str, float | torch.Tensor]]:
    """What ``loss`` returned, as the loss and further values. Raises UserCodeError for anything else."""
    loss, values = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not isinstance(values, Mapping):
        seen = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise UserCodeError(
            f"loss returned {seen}; return a scalar tensor, or (scalar tensor, {{name: value}}), a mean over the batch"
        )
    if not loss.requires_grad:
        raise UserCodeError(
            "loss returned a tensor that depends on no parameter with a gradient; "
            "compute it from the model's output, without detach or no_grad"
        )
    return loss.float() if loss.dtype in (torch.float16, torch.bfloat16) else loss, values


def _checked_weight(weight: object) -> float:
    try:
        value = float(weight)  # type: ignore[arg-type]  # whatever the user's code returned; what cannot be read is told
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UserCodeError(f"weight returned {weight!r:.80}; return the number of units of the batch, at least 0")
    return value
