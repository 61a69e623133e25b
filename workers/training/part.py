"""One rank's part of one round: its samples, in micro-batches that fit its memory, as gradients and sums."""

from __future__ import annotations

import time

import torch

from workers.errors import OutOfMemoryError
from workers.plan import Plan
from workers.status import Phase
from workers.training import batching, memory
from workers.training.back_off import MemoryInExchangeError, back_off, settle
from workers.training.device_clock import DeviceClock
from workers.training.exchange import vector
from workers.training.exchange.gradients import GradientExchange
from workers.training.exchange.vector import LocalSums, NoiseSums
from workers.training.gradient_squares import PieceSquares
from workers.training.loads import OwnCost
from workers.training.mailbox import Mailbox
from workers.training.micro import Choice
from workers.training.returned import checked_loss, checked_weight
from workers.training.setup import Setup
from workers.training.signals import RoundTimes


class Part:
    """Samples [begin, end), in positions within the round's batch of ``size``; ``micro`` of them a forward pass."""

    def __init__(self, setup: Setup, mailbox: Mailbox, exchange: GradientExchange, plan: Plan, rank: int) -> None:
        self._setup, self._state, self._mailbox, self._exchange = setup, setup.state, mailbox, exchange
        self.plan = plan
        self.size = min(plan.global_batch, setup.total_samples - setup.state.cursor)
        self.begin, self.end = batching.own_part(plan, rank, self.size)
        self.micro = setup.micro.begin(self.end - self.begin)
        self._is_on_trial = setup.micro.is_trying
        self.sums = LocalSums()
        self.times = RoundTimes()
        self._clock = DeviceClock() if setup.device.type == "cuda" else None
        self.squares: PieceSquares | None = None  # where this round's gradient noise is measured
        self.is_split = False  # two passes where one would do

    @property
    def share(self) -> float:
        """This part of the whole batch; 0 where it has no units that count."""
        return (self.end - self.begin) / self.size if self.sums.weight > 0 else 0.0

    def compute(self) -> None:
        """Gradients and sums, with fewer samples a forward pass where memory asks for it.

        Raises MemoryInExchangeError, OutOfMemoryError, GroupLeftError, and whatever the user's code raises.
        """
        while True:
            try:
                choice = self._computed()
            except (RuntimeError, MemoryError, OSError, OutOfMemoryError) as error:
                if not memory.is_out_of_memory(error):
                    raise
                self._back_off(error)
            else:
                if self._clock is not None:
                    self._clock.stop()
                if choice is not None:
                    settle(self._setup, self._mailbox, choice)
                return
            # Only here, after the exception, are the frames gone that held its activations.
            self._state.buffers.rollback()

    def _computed(self) -> Choice | None:
        """A choice where a size was on trial and is settled now; rounds that measure gradients tell little of sizes."""
        if self.squares is None:
            return self._setup.micro.run(self._accumulate, self.end - self.begin, self.micro)
        with self.squares:
            self._accumulate()
        return None

    def own_cost(self) -> OwnCost | None:
        """What the part took this rank by itself, None where that was not the usual. Call after the exchange."""
        if self._is_on_trial or self.squares is not None:
            return None
        return OwnCost(plan_id=self.plan.id, samples=self.end - self.begin, seconds=self._own_s())

    def _own_s(self) -> float:
        """Seconds without waits for others.

        On a CPU those of fetching and computing: buckets that leave meanwhile are sent by threads of gloo's own, whose
        use of the cores is part of what a sample costs here. A CUDA device is asked, as calls return before it is done.
        """
        host_s = self.times.data_s + self.times.compute_s
        return host_s if self._clock is None else max(host_s, self._clock.elapsed_s())

    def fill(self) -> None:
        """Write this rank's part of the exchange's tail: the last of its gradients are about to leave."""
        exchange, tracked = self._exchange, self._state.buffers
        num_unused = exchange.write_used()
        is_last = self._state.cursor + self.size >= self._setup.total_samples  # a pending plan lapses there
        num_holding = 0 if is_last else self._mailbox.count()
        counted = num_unused if self.sums.weight > 0 else 0
        noise = NoiseSums() if self.squares is None else self.squares.sums()
        exchange.tail.write_head(vector.encode(self.sums, noise, num_holding, counted, len(tracked.changed())))
        tracked.encode(self.share, exchange.tail.extra)

    def _accumulate(self) -> None:
        self._exchange.clear()
        self.sums = LocalSums()
        size = min(self.micro, -(-self.size // 2)) if self.is_split else self.micro
        for begin, end in batching.pieces(self.begin, self.end, size):
            self._micro_batch(begin, end)
        if self.sums.is_cut:
            self._mailbox.cut("values", vector.VALUES_REASON)
        if self.sums.names is not None:
            self._state.user_names = self.sums.names

    def _micro_batch(self, begin: int, end: int) -> None:
        setup, state, times = self._setup, self._state, self.times
        self._mailbox.check()
        self._mailbox.set_phase(Phase.DATA)
        started_s = time.perf_counter()
        batching.seed_all(setup.spec.seed, state.round, begin)
        drawn = setup.order.indexes(state.cursor + begin, state.cursor + end).tolist()
        batch = setup.train.batch(drawn)
        self.sums.samples += len(drawn)
        drawn_s = time.perf_counter()
        times.data_s += drawn_s - started_s
        self._mailbox.set_phase(Phase.COMPUTE)
        weight = float(end - begin) if setup.task.weight is None else checked_weight(setup.task.weight(batch))
        if weight > 0:
            with setup.precision.computing():
                loss, values = checked_loss(setup.task.loss(state.model, batch))
            self.sums.add(loss, weight, values)
            scale = 1.0 if state.scaler is None else state.scaler.scale
            if end == self.end:
                self._exchange.arm(self.fill)
            # In units of the last round, so that what comes back is the mean already as long as they stay.
            factor = weight / (self.size * state.units_per_sample) * scale
            if self.squares is not None:
                self.squares.begin(weight / factor**2)
            torch.autograd.backward(loss, torch.full_like(loss, factor))
        times.compute_s += time.perf_counter() - drawn_s

    def _back_off(self, error: Exception) -> None:
        has_launched, tried = self._exchange.has_launched, self.micro
        back_off(self._setup, self._mailbox, error, tried)
        self.micro = self._setup.micro.within(self.end - self.begin)
        if has_launched:
            raise MemoryInExchangeError(
                f"memory ran out at {tried} samples a forward pass, after gradients had left; "
                f"the round is tried again with {self.micro}"
            ) from error
