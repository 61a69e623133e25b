"""Measures the gradient noise in some of a worker's rounds, by what backward makes anyway."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from workers.errors import described
from workers.plan import Plan
from workers.training.exchange.gradients import GradientExchange
from workers.training.exchange.vector import GlobalSums
from workers.training.gradient_squares import Measure, PieceSquares
from workers.training.mailbox import GroupLeftError
from workers.training.noise import estimate, splits
from workers.training.part import Part
from workers.training.state import TrainingState


class NoiseMeter:
    """One a worker. In each round all ranks call ``compute``, ``stage`` (if it is finite) and ``spent``."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._measure: Measure | None = None
        self._memory: dict[int, torch.Tensor] = {}
        self._can_split = True
        self._cost = 0.0
        self._seconds = 0.0

    def compute(self, part: Part, exchange: GradientExchange) -> None:
        """Compute a part, measured where its round is one for it. Raises what ``Part.compute`` raises.

        A batch that cannot be computed in two passes is computed in one, now and from then on.
        """
        self._begin(part, exchange)
        try:
            part.compute()
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

    def _begin(self, part: Part, exchange: GradientExchange) -> None:
        """Have this part's micro-batches measured where its round is one for it.

        Where one rank computes the whole batch in one pass there is nothing to compare, so now and then it computes
        in two, which is the same step but for rounding, and other draws of dropout. Not where a sample's output
        depends on the others of its pass, nor where the spec fixes the passes: such a job tells no noise scale.
        """
        state, self._measure, self._seconds = self._state, None, 0.0
        if part.is_one_pass:
            may_split = self._can_split and not part.is_fixed and part.size > 1
            if not may_split or not splits(state.round + 1) or _mixes_samples(state):
                return
            part.is_split = True
        elif not state.noise.is_due(state.round + 1):
            return
        started_s = time.perf_counter()
        self._measure = Measure(exchange.parameters, state.optimizer, self._memory)
        part.squares = PieceSquares(exchange.parameters, self._measure, self._cost)
        self._seconds = time.perf_counter() - started_s

    def stage(self, exchange: GradientExchange, sums: GlobalSums, plan: Plan, factor: float, grad_norm: float) -> None:
        """Take what all ranks measured; ``factor`` makes the summed gradient the mean one, of norm ``grad_norm``.

        Call it before the optimizer's step. Where gradients travel approximately, so is the mean's norm.
        """
        if sums.noise_pieces == 0:
            return
        started_s = time.perf_counter()
        measure = self._measure or Measure(exchange.parameters, self._state.optimizer, self._memory)
        found = None
        if sums.noise_pieces > 1:
            is_plain = not measure.is_preconditioned
            square = grad_norm**2 if is_plain else measure.square_of_all(exchange.gradients) * factor**2
            found = estimate(sums.noise_squares, square, sums.weight, sums.noise_pieces)
            found = replace(found, variance=found.variance * sums.samples / sums.weight)  # of a sample, not of a unit
        self._state.noise.stage(
            self._state.round + 1,
            found,
            is_preconditioned=measure.is_preconditioned,
            cost=sums.noise_cost / plan.num_members or None,
        )
        self._seconds += time.perf_counter() - started_s

    def spent(self, part: Part, step_s: float) -> None:
        """Note what a measurement took of a round that lasted ``step_s`` in all, to be told with the next."""
        if part.squares is None or part.is_split:
            return
        seconds = self._seconds + part.squares.seconds
        self._cost = seconds / max(step_s - seconds, 1e-9)


def _mixes_samples(state: TrainingState) -> bool:
    """Whether batch normalisation, or what else writes to buffers, makes two passes another step than one."""
    return bool(state.buffers.tracked) or any(isinstance(m, _BatchNorm) for m in state.model.modules())
