"""One rank's part of one round: its samples, in micro-batches that fit its memory, as gradients and sums."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch

from workers.errors import OutOfMemoryError, described
from workers.plan import Plan
from workers.status import Phase
from workers.task import Batch
from workers.training import batching, footprint, memory
from workers.training.back_off import MemoryInExchangeError, back_off, settle, too_big
from workers.training.dealer import check_division
from workers.training.device_clock import DeviceClock
from workers.training.draw import ahead, batch_size, draw_round, is_at_random, wanted
from workers.training.exchange import vector
from workers.training.exchange.gradients import GradientExchange
from workers.training.exchange.vector import GlobalSums, LocalSums, NoiseSums
from workers.training.gradient_squares import PieceSquares
from workers.training.loads import OwnCost
from workers.training.mailbox import Mailbox
from workers.training.micro import Choice
from workers.training.micro_batches import Draw, InOrder, MicroBatch
from workers.training.pass_share import PassShare
from workers.training.reading import Wanted
from workers.training.returned import checked_loss, checked_weight
from workers.training.round_times import RoundTimes
from workers.training.rows import check_packed
from workers.training.setup import Setup
from workers.training.stopwatch import Stopwatch
from workers.training.token_tuning import TokenTuning

CLIP_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ has it

_COMPUTING = b" computing"


class Part:
    """What this rank draws of a batch of ``size``; ``micro`` is its largest micro-batch in samples.

    The batch is the round's, or begins ``offset`` samples after it, of a round with several. Gradients of a part that
    ``is_alone`` stay here: they are the part's mean, and none leaves.
    """

    num_steps = 1

    def __init__(
        self,
        setup: Setup,
        mailbox: Mailbox,
        exchange: GradientExchange,
        plan: Plan,
        rank: int,
        *,
        offset: int = 0,
        is_alone: bool = False,
    ) -> None:
        self._setup, self._state, self._mailbox, self._exchange = setup, setup.state, mailbox, exchange
        self.plan = plan
        self.offset, self._is_alone = offset, is_alone
        self._cursor = setup.state.cursor + offset
        self.size = batch_size(setup, plan, self._cursor)
        self._rank = rank
        begin, end = batching.own_part(plan, rank, self.size, is_paired=setup.state.needs_pairs)
        self._num_own = end - begin  # where parts are dealt by length its share: then samples differ from step to step
        self._num_in_order = 0 if setup.train_dealer is not None else self._num_own
        pass_size = setup.micro.begin(self._num_in_order)
        self.is_fixed = isinstance(setup.spec.batch.micro_size, int)
        self.is_one_pass = 0 < self.size == self._num_in_order <= pass_size  # the whole batch, here and at once
        # By length a sample may be dealt to a rank whose part of a small batch has none.
        self.expected_weight = max(1, self._num_own if is_alone else self.size) * setup.state.units_per_sample
        self.is_at_random = is_at_random(setup, plan, setup.state.round)  # such passes tell nothing of those by length
        self._passes = None if setup.train_dealer is None or self.is_at_random else setup.train_dealer.passes
        is_cut_on_trial = self._passes is not None and self._may_try(self._passes)
        self._is_on_trial = setup.micro.is_trying or is_cut_on_trial
        self.is_way_on_trial = False  # ways to read
        self._draw: Draw | None = None
        self._tried = pass_size
        self.micro = self.num_passes = 1
        self.sums = LocalSums()
        self.times = RoundTimes()
        self._begun_s = time.perf_counter()
        self._clock = DeviceClock() if setup.device.type == "cuda" else None
        self.squares: PieceSquares | None = None  # where this round's gradient noise is measured
        self.is_split = False  # two passes where one would do
        self.has_backed_off = False

    def _may_try(self, passes: PassShare) -> bool:
        """Whether another cut of passes is on trial; where tokens have no bound, not before it is known what fits."""
        micro = self._setup.micro
        if passes.max_tokens is None and isinstance(micro, TokenTuning) and (most := micro.fitting()) is not None:
            passes.allow(most)
        return passes.is_trying

    @property
    def gradient_scale(self) -> float:
        """What gradients are multiples of, against overflow: the loss scale."""
        return 1.0 if self._state.scaler is None else self._state.scaler.scale

    @property
    def clip_norm(self) -> float | None:
        """What the mean gradient's norm is bounded by."""
        return self._setup.spec.optimizer.clip_norm

    def update(self, sums: GlobalSums, factor: float, lr: float) -> None:
        """The optimizer's step with the summed gradient, which ``factor`` makes the mean one; the same on all ranks.

        Raises whatever the optimizer raises; then parameters may be half updated.
        """
        if sums.has_unused:
            self._state.residual.put_back(self._exchange.leave_out_unused())
        if factor != 1.0:
            self._exchange.scale(factor)
        self._state.step(lr, self._setup.spec.seed, self.offset, (self.plan.global_batch, sums.noise_scale))

    @property
    def share(self) -> float:
        """This part of the whole batch; 0 where it has no units that count."""
        return self.sums.samples / self.size if self.sums.weight > 0 else 0.0

    def compute(self) -> None:
        """Gradients and sums, with fewer samples a forward pass where memory asks for it.

        Where the gradient noise was being measured that is given up first: passes of this size may fit without it.

        Raises MemoryInExchangeError, OutOfMemoryError, GroupLeftError, DataError, and whatever the user's code raises.
        """
        while True:
            self._begun_s = time.perf_counter()
            try:
                choice = self._computed()
            except (RuntimeError, MemoryError, OSError, OutOfMemoryError) as error:
                if not memory.is_out_of_memory(error):
                    raise
                if self.squares is not None and not self.squares.is_given_up:
                    self._give_up_noise(self.squares, error)
                else:
                    self._back_off(error)
            else:
                if self._clock is not None:
                    self._clock.stop()
                if choice is not None:
                    settle(self._setup, self._mailbox, choice)
                return
            # Only here, after the exception, are the frames gone that held its activations.
            self._setup.feed.drop()
            self._setup.micro.release()
            self._state.buffers.rollback()

    def _computed(self) -> Choice | None:
        """A choice where a size was on trial and is settled now; rounds that measure gradients tell little of sizes."""
        if self.squares is None:
            micro = self._setup.micro
            if isinstance(micro, TokenTuning):
                self._by_length(micro)
                return None
            return micro.run(self._accumulate, self._num_in_order, micro.within(self._num_in_order))
        with self.squares:
            self._accumulate()
        return None

    def _by_length(self, micro: TokenTuning) -> None:
        """Compute the part; where another cut is on trial, so cut."""
        draw, passes = self._drawn(), self._passes  # lengths that are not known yet are none of a pass's cost
        if passes is None or not passes.is_trying:
            micro.run(self._accumulate, lambda: largest_pass(draw))
            return
        watch = Stopwatch()  # without a look at memory, which takes time
        self._accumulate()
        footprint.wait(self._setup.device)
        choice = passes.measured(self.sums.tokens, largest_pass(draw), watch.seconds())
        if choice is not None:
            print(f"passes: {choice.reason}", flush=True)
            micro.replaced(choice.after)
            self._mailbox.micro_changed(
                before=choice.before,
                after=choice.after,
                reason=choice.reason,
                unit="padded tokens",
                compared=choice.compared,
                cost_s=choice.cost_s,
            )

    def own_cost(self) -> OwnCost | None:
        """What the part took this rank by itself, None where that was not the usual. Call after the exchange."""
        if self._is_on_trial or self.is_at_random or self.squares is not None:
            return None
        assert self._exchange.took is not None
        return OwnCost(
            plan_id=self.plan.id,
            samples=self._num_own,
            seconds=self._own_s(),
            tokens=self.sums.tokens,
            exchange_s=self.times.exchange_s,
            exposed_s=self.times.exposed_s,
            wire_s=self._exchange.took.wire_s,
            backward_s=self._exchange.took.backward_s,
            codec_s=self._exchange.took.codec_s,
        )

    def _own_s(self) -> float:
        """Seconds without waits for others.

        Those of fetching and computing: on a CPU buckets that leave meanwhile are sent by threads of gloo's own, whose
        use of the cores is part of what a sample costs here.
        """
        return self.times.data_s + self.times.compute_s

    def measure(self) -> None:
        """Ask a CUDA device what computing took, as calls return before it is done, and wait for that.

        Best after a result of it was read, when there is nothing left to wait for.
        """
        if self._clock is not None:
            self.times.compute_s = max(self.times.compute_s, self._clock.elapsed_s() - self.times.data_s)

    def fill(self) -> None:
        """Write this rank's part of the exchange's tail: the last of its gradients are about to leave."""
        noise = NoiseSums() if self.squares is None else self.squares.sums()
        if self._rank == 0:
            scale = self._state.noise.value(self.size)
            noise = replace(noise, scale=-1.0 if scale is None else scale)
        fill_tail(self._setup, self._mailbox, self._exchange, self.sums, noise, self.size, self.share)

    def check_division(self, summed: GlobalSums) -> None:
        """Check that all ranks divided this batch alike. Raises DataError where their lengths differ."""
        check_division(self.sums.division, summed.division, self.plan.num_members, f"the step's {self.size} samples")

    def _accumulate(self) -> float | None:
        """Compute the part; the least seconds a sample of its passes but the first, None where there is only that."""
        self._exchange.clear()
        draw = self._drawn()
        if self.is_split and isinstance(draw, InOrder):
            draw = replace(draw, most=-(-draw.num_samples // 2))
        batches = list(draw.micro_batches())
        self._read_ahead(batches)
        self.is_way_on_trial = self._setup.feed.is_on_trial and bool(batches)
        is_trial = self._is_on_trial or self.is_split or self.is_at_random or self.is_way_on_trial
        self.sums, self.micro, self.num_passes = LocalSums(division=draw.checksum, is_trial=is_trial), 1, len(batches)
        warm_s: float | None = None
        for number, micro in enumerate(batches):
            begun_s = time.perf_counter()
            self._tried, self.micro = micro.cost, max(self.micro, len(micro.indexes))
            self._micro_batch(micro, is_last=micro is batches[-1])
            if number > 0:
                sample_s = (time.perf_counter() - begun_s) / len(micro.indexes)
                warm_s = sample_s if warm_s is None else min(warm_s, sample_s)
        if self.sums.is_cut:
            self._mailbox.cut("values", vector.VALUES_REASON)
        if self.sums.names is not None:
            self._state.user_names = self.sums.names
        return warm_s

    def _drawn(self) -> Draw:
        """What this rank draws, found once a round."""
        if self._draw is None:
            self._mailbox.check()
            self._mailbox.set_phase(Phase.DATA)
            started_s = time.perf_counter()
            round = self._state.round
            self._draw = draw_round(self._setup, self.plan, self._rank, round, self._cursor, self._read_on)
            self.times.data_s += time.perf_counter() - started_s
        return self._draw

    def _read_on(self) -> None:
        """Leave if asked to; else begin the phase anew: its bound is for some samples, and here all may be read."""
        self._mailbox.check()
        self._mailbox.set_phase(Phase.DATA)

    def _read_ahead(self, batches: Sequence[MicroBatch]) -> None:
        """Let those be read that come next; while sizes are tried nobody knows which, nor should reading be in it."""
        started_s = time.perf_counter()
        self._setup.feed.begin(iter(()) if self._is_on_trial else self._coming(batches))
        self.times.data_s += time.perf_counter() - started_s

    def _coming(self, batches: Sequence[MicroBatch]) -> Iterator[Wanted]:
        round, offset = self._state.round, self.offset
        later = ahead(self._setup, self.plan, self._rank, round, self._state.cursor, self._mailbox.check, offset)
        return chain((wanted(round, micro, offset) for micro in batches), later)

    def _micro_batch(self, micro: MicroBatch, *, is_last: bool) -> None:
        setup, state, times = self._setup, self._state, self.times
        self._mailbox.check()
        self._mailbox.set_phase(Phase.DATA)
        started_s = time.perf_counter()
        batch = setup.feed.take(wanted(state.round, micro, self.offset), self._mailbox.check)
        batching.seed_all(setup.spec.seed, state.round, self.offset + micro.position, _COMPUTING)
        self.sums.count(len(micro.indexes), micro.tokens, micro.padded_tokens)
        drawn_s = time.perf_counter()
        times.data_s += drawn_s - started_s
        self._mailbox.set_phase(Phase.COMPUTE)
        num_units = setup.task.weight
        if setup.task.packed:
            num_samples, is_mean = len(micro.indexes), num_units is None
            check_packed(batch, micro.tokens, micro.longest, num_samples, is_mean_over_samples=is_mean)
        weight = float(len(micro.indexes)) if num_units is None else checked_weight(num_units(batch))
        if weight > 0:
            # Passes by length differ in tokens, of which the number of samples tells nothing.
            size = len(micro.indexes) if setup.train_dealer is None else 0
            with setup.pass_note.trying(size):
                self._pass(batch, weight, is_last=is_last)
        times.compute_s += time.perf_counter() - drawn_s

    def _pass(self, batch: Batch, weight: float, *, is_last: bool) -> None:
        setup, state = self._setup, self._state
        with setup.precision.computing():
            loss, values = checked_loss(setup.task.loss(state.model, batch))
        self.sums.add(loss, weight, values)
        if is_last and not self._is_alone:
            self._exchange.arm(self.fill, loss)
        # In units of the last round, so that what comes back is the mean already as long as they stay.
        factor = weight / self.expected_weight * self.gradient_scale
        if self.squares is not None:
            self.squares.begin(weight / factor**2)
        torch.autograd.backward(loss, torch.full_like(loss, factor))

    def _give_up_noise(self, squares: PieceSquares, error: Exception) -> None:
        squares.give_up(described(error))
        self.is_split = False
        if self._exchange.has_launched:
            raise MemoryInExchangeError(
                "memory ran out while the gradient noise was measured, after gradients had left; "
                "the round is tried again without"
            ) from error

    def lacked(self, error: Exception, what: str = "what gradients travel in") -> None:
        """Where memory ran out beside passes, for ``what``, leave the round, and compute less at a time from then on.

        Raises MemoryInExchangeError, OutOfMemoryError; returns where ``error`` tells of something else.
        """
        if memory.is_out_of_memory(error):
            lack = OutOfMemoryError(f"none left for {what}: {described(error)}")
            lack.__cause__ = error
            self._back_off(lack, f"for {what}")

    def _back_off(self, error: Exception, where: str = "") -> None:
        """Have smaller passes from now on; leave the round ``where`` that is told, and where this part has left it."""
        draw, tried = self._draw, self._tried
        if draw is None and not where:  # a sample was read for its length, one alone
            raise too_big(self._setup, error, 1) from error
        self.has_backed_off = True
        unit = "samples" if draw is None else draw.unit
        size = back_off(self._setup, self._mailbox, error, tried, unit, time.perf_counter() - self._begun_s)
        if self._exchange.has_launched:
            where = where or "after gradients had left"
        elif self._is_alone and self.offset > 0 and self._state.buffers.names:
            # What earlier steps of the round wrote to buffers would be taken back with what this one did.
            where = where or "in a later step of the round"
        if where:
            raise MemoryInExchangeError(
                f"memory ran out at {tried} {unit} a forward pass, {where}; the round is tried again with {size}"
            ) from error


def largest_pass(draw: Draw) -> int:
    """Tokens of the largest micro-batch of a part, padding included."""
    return max((micro.padded_tokens for micro in draw.micro_batches()), default=0)


def fill_tail(
    setup: Setup,
    mailbox: Mailbox,
    exchange: GradientExchange,
    sums: LocalSums,
    noise: NoiseSums,
    size: int,
    share: float,
) -> None:
    """Write what rides with a round of ``size`` samples, of which this rank had a ``share``."""
    tracked = setup.state.buffers
    num_unused = exchange.write_used()
    is_last = setup.state.cursor + size >= setup.total_samples  # a pending plan lapses there
    num_holding = 0 if is_last else mailbox.count()
    counted = num_unused if sums.weight > 0 else 0
    exchange.tail.write_head(vector.encode(sums, noise, num_holding, counted, len(tracked.changed())))
    tracked.encode(share, exchange.tail.extra)
