"""Measures the gradient noise in some of a worker's rounds, by what backward makes anyway."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from enum import IntEnum

import torch

from workers.errors import described
from workers.plan import Plan
from workers.training import memory
from workers.training.back_off import MemoryInExchangeError
from workers.training.exchange.gradients import GradientExchange
from workers.training.exchange.vector import GlobalSums
from workers.training.gradient_squares import Measure, PieceSquares
from workers.training.mailbox import GroupLeftError
from workers.training.noise import estimate, splits
from workers.training.part import Part
from workers.training.state import TrainingState

NO_EFFORT = "memory has run out in measuring"


class Effort(IntEnum):
    """How much memory this worker takes for measuring: the less, the slower; with ``NONE`` its job is told nothing."""

    NONE = 0
    FRUGAL = 1
    FULL = 2


class NoiseMeter:
    """One a worker. In each round all ranks call ``compute``, ``stage`` (if it is finite) and ``spent``.

    What a job trains must not hang on being measured: where memory runs out in a measured round, that measurement is
    given up, and those that follow take less.
    """

    def __init__(self, state: TrainingState, *, is_by_length: bool) -> None:
        self._state = state
        self._is_by_length = is_by_length
        self._measure: Measure | None = None
        self._kept: dict[int, torch.Tensor] = {}
        self._effort = Effort.FULL
        self._suspicion = ""
        self._can_split = True
        self._cost = 0.0
        self._seconds = 0.0

    def compute(self, part: Part, exchange: GradientExchange) -> None:
        """Compute a part, measured where its round is one for it. Raises what ``Part.compute`` raises.

        A batch that cannot be computed in two passes is computed in one, now and from then on.
        """
        self._begin(part, exchange)
        try:
            self._compute(part)
            return
        except GroupLeftError:
            raise
        except Exception as error:  # the user's code may raise anything
            if not part.is_split or exchange.has_launched:
                raise
            told = f"noise_scale is not told: half of a batch cannot be computed ({described(error)})"
            part.is_split, part.squares = False, None
        # Only here, after the exception, are the frames gone that held its activations.
        self._state.buffers.rollback()
        part.compute()
        print(told, flush=True)
        self._can_split = False

    def _compute(self, part: Part) -> None:
        """Compute a part; that memory ran out is held against the measurement where a pass of this size fits alone."""
        try:
            part.compute()
        except MemoryInExchangeError as error:
            if part.squares is not None and not part.has_backed_off:
                self._suspicion = described(error)  # what the same round comes to without will show
            raise
        if part.squares is not None and part.squares.is_given_up and not part.has_backed_off:
            self._ease(part.squares.lack)

    def _ease(self, lack: str) -> None:
        """Take less memory from the next measurement on."""
        if self._effort is Effort.NONE:
            return
        self._effort = Effort(self._effort - 1)
        self._kept.clear()
        is_over = self._effort is Effort.NONE
        told = "noise_scale is told no more" if is_over else "noise_scale is measured with less memory from now on"
        print(f"{told}: there was none left for it ({lack})", flush=True)

    def _begin(self, part: Part, exchange: GradientExchange) -> None:
        """Have this part's micro-batches measured where its round is one for it.

        Where one rank computes the whole batch in one pass there is nothing to compare, so now and then it computes
        in two, which is the same step but for rounding, and other draws of dropout. Not where a sample's output
        depends on the others of its pass, nor where the spec fixes the passes: such a job tells no noise scale. Nor
        does one whose gradients come back so roughly that the norm of their sum is another. Where batches are dealt by
        length those rounds are measured that deal at random: samples of one length are no random part of a batch.
        """
        self._measure, self._seconds = None, 0.0
        if exchange.blurs_norm or not self._is_due(part):
            return
        part.is_split = part.is_one_pass
        started_s = time.perf_counter()
        self._measure = self._new_measure(exchange)
        part.squares = PieceSquares(exchange.parameters, self._measure, self._cost)
        if self._suspicion or self._effort is Effort.NONE:
            part.squares.give_up(self._suspicion or NO_EFFORT)
        self._suspicion = ""
        self._seconds = time.perf_counter() - started_s

    def _is_due(self, part: Part) -> bool:
        state, round = self._state, self._state.round + 1
        if self._is_by_length:
            return part.is_at_random
        if not part.is_one_pass:
            return state.noise.is_due(round)
        may_split = self._can_split and self._effort > Effort.NONE and not part.is_fixed and part.size > 1
        return may_split and splits(round) and not state.mixes_samples

    def _new_measure(self, exchange: GradientExchange) -> Measure:
        is_frugal = self._effort < Effort.FULL
        return Measure(exchange.parameters, self._state.optimizer, self._kept, is_frugal=is_frugal)

    def stage(self, exchange: GradientExchange, sums: GlobalSums, plan: Plan, factor: float, grad_norm: float) -> None:
        """Take what all ranks measured; ``factor`` makes the summed gradient the mean one, of norm ``grad_norm``.

        Call it before the optimizer's step. Where gradients travel approximately, so is the mean's norm.
        """
        if sums.noise_pieces == 0:
            return
        started_s = time.perf_counter()
        measure = self._measure or self._new_measure(exchange)
        found = None
        if sums.noise_pieces > 1 and math.isfinite(sums.noise_squares):
            is_plain = not measure.is_preconditioned
            square = grad_norm**2 if is_plain else self._square_of_all(measure, exchange) * factor**2
            found = estimate(sums.noise_squares, square, sums.weight, sums.noise_pieces)
            found = replace(found, variance=found.variance * sums.samples / sums.weight)  # of a sample, not of a unit
        self._state.noise.stage(
            self._state.round + 1,
            found,
            is_preconditioned=measure.is_preconditioned,
            cost=sums.noise_cost / plan.num_members or None,
        )
        self._seconds += time.perf_counter() - started_s

    def _square_of_all(self, measure: Measure, exchange: GradientExchange) -> float:
        """The squared length of the summed gradient; not a number where there is no memory for it.

        Then this rank's average lacks one measurement that the others' have.
        """
        try:
            return measure.square_of_all(exchange.gradients)
        except (RuntimeError, MemoryError) as error:
            if not memory.is_out_of_memory(error):
                raise
            lack = described(error)
        # Only here, after the exception, is free again what its frames held.
        if self._effort is not Effort.FULL:
            self._ease(lack)
            return math.nan
        self._ease(lack)
        return self._square_of_all(self._new_measure(exchange), exchange)

    def spent(self, part: Part, step_s: float) -> None:
        """Note what a measurement took of a round that lasted ``step_s`` in all, to be told with the next."""
        if part.squares is None or part.squares.is_given_up or part.is_split:
            return
        seconds = self._seconds + part.squares.seconds
        self._cost = seconds / max(step_s - seconds, 1e-9)
