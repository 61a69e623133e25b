"""Squared norms of the gradients of single micro-batches, taken in passing while backward makes them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from workers.errors import described
from workers.training import memory
from workers.training.exchange.vector import NoiseSums

MIN_STEPS = 5
"""Before this many steps an optimizer's second moments are too rough to measure by."""

FLOOR = 0.03
"""Adam's own step has the present gradient in its second moment, and so a bound, 1 / sqrt(1 - beta2), about 30, that
the moment of the steps before lacks: a number whose gradients were all next to 0 would count a million times."""

_HOST_NUMEL, _DEVICE_NUMEL = 1, 2**22
"""So many numbers are measured at a time: on a CPU each gradient while it is in the cache, else many in few kernels."""

_SLICE_NUMEL = 2**16
"""So many numbers at a time, or a row of them, where memory is short."""

_MAX_KEPT_NUMEL = 2**24
"""For models up to this size what to multiply by is computed once a round, in memory that stays: 64 MiB at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """By what an Adam-like optimizer divides a gradient: (sqrt(square) + epsilon) / unbiased."""

    square: torch.Tensor
    unbiased: float
    epsilon: float


class Measure:
    """By what a gradient's length is taken in one round, the same on all ranks since their optimizers hold the same.

    Where the optimizer divides by sqrt(v / (1 - beta2^t)) + eps, so does this (its steps have that geometry, and the
    noise that counts is that of the steps); the parameters that it holds no v of yet are left out. Else plain.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        kept: dict[int, torch.Tensor],
        *,
        is_frugal: bool = False,
    ) -> None:
        """``kept`` is to be that of the measure before, since fresh memory costs more than the arithmetic in it.

        ``is_frugal``: slower, and hardly any memory is taken.
        """
        moments = _moments(parameters, optimizer)
        self.is_preconditioned = moments is not None
        self._moments = moments or [None] * len(parameters)
        self.indexes = [i for i, m in enumerate(self._moments) if m is not None or moments is None]
        self._is_small = sum(p.numel() for p in parameters) <= _MAX_KEPT_NUMEL
        self._kept = kept
        self._known: set[int] = set()
        self._is_host = _is_on_host(parameters)
        self._is_frugal = is_frugal
        self.portion_numel = _HOST_NUMEL if self._is_host or is_frugal else _DEVICE_NUMEL

    def square(self, indexes: Sequence[int], gradients: list[torch.Tensor]) -> float | torch.Tensor:
        """The squared length of the gradients of these parameters; takes as much memory as they do, unless frugal."""
        if self._is_frugal:
            return sum(self._square_in_slices(i, gradient) for i, gradient in zip(indexes, gradients, strict=True))
        if self._is_host:
            return sum(self._square_on_host(i, gradient) for i, gradient in zip(indexes, gradients, strict=True))
        moments = [m for i in indexes if (m := self._moments[i]) is not None]
        if moments:
            roots = torch._foreach_sqrt([m.square for m in moments])
            torch._foreach_add_(roots, [m.epsilon for m in moments])
            gradients = list(torch._foreach_div(gradients, roots))
        norms = torch._foreach_norm(gradients)
        if moments:
            norms = torch._foreach_mul(norms, [m.unbiased for m in moments])
        return torch.stack(tuple(norms)).double().square_().sum()

    def square_of_all(self, gradients: Sequence[torch.Tensor]) -> float:
        """The same of all parameters' gradients, measured in portions; it waits for the device."""
        return sum(
            float(self.square(portion, [gradients[i] for i in portion]))
            for portion in _portions(self.indexes, gradients, self.portion_numel)
        )

    def _square_on_host(self, index: int, gradient: torch.Tensor) -> float:
        moment = self._moments[index]
        if moment is None:
            return float(torch.linalg.vector_norm(gradient)) ** 2
        inverse = self._kept.get(index) if self._is_small else None
        if index not in self._known or inverse is None:
            inverse = torch.sqrt(moment.square, out=inverse).add_(moment.epsilon).reciprocal_()
            if self._is_small:
                self._kept[index] = inverse
                self._known.add(index)
        return (float(torch.linalg.vector_norm(gradient * inverse)) * moment.unbiased) ** 2

    def _square_in_slices(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        moment = self._moments[index]
        if moment is None:
            whole: torch.Tensor = torch.linalg.vector_norm(gradient).double().square()
            return whole
        square = moment.square
        if gradient.dim() == 0:
            gradient, square = gradient.reshape(1), square.reshape(1)
        num_rows = max(1, _SLICE_NUMEL * len(gradient) // max(1, gradient.numel()))
        total = torch.zeros((), dtype=torch.float64, device=gradient.device)
        for rows, moments in zip(torch.split(gradient, num_rows), torch.split(square, num_rows), strict=True):
            divided_by = torch.sqrt(moments).add_(moment.epsilon)
            total += torch.linalg.vector_norm(rows / divided_by).double().square()
        return total * moment.unbiased**2


class PieceSquares:
    """Sum of weighted squared norms over a rank's micro-batches of one round; entered anew whenever it computes them.

    Tensor hooks see what this backward pass alone makes, before it is added to what was accumulated; nothing is
    copied. Outside of the context there are none, so that other rounds pay nothing. Where memory for it runs out the
    measurement is given up, not the pass: its sum is infinite, so that no rank takes what the others' come to.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], measure: Measure, cost: float) -> None:
        """``cost`` is told with the sums: what the measurement before took of its round on this rank."""
        self._parameters, self._measure, self._cost = parameters, measure, cost
        self._hooks: list[RemovableHandle] = []
        self._arrived: set[int] = set()
        self._indexes: list[int] = []
        self._gradients: list[torch.Tensor] = []
        self._held_numel = 0
        self._factor = 0.0
        self._total: float | torch.Tensor = 0.0
        self._num_pieces = 0
        self.seconds = 0.0
        self.lack = ""

    @property
    def is_given_up(self) -> bool:
        """Whether nothing is measured, for ``lack`` of memory in the words of the error."""
        return bool(self.lack)

    def give_up(self, lack: str) -> None:
        """Measure nothing more of this round, also when its passes are computed again."""
        self.lack = lack
        self._forget()

    def __enter__(self) -> PieceSquares:
        started_s = time.perf_counter()
        self._forget()
        self._total, self._num_pieces = 0.0, 0
        self._hooks = [] if self.is_given_up else [*map(self._hooked, self._unfrozen())]
        self.seconds += time.perf_counter() - started_s
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def begin(self, factor: float) -> None:
        """The coming backward pass is a micro-batch's, whose squared norm counts ``factor`` times."""
        self._measure_held()
        self._arrived.clear()
        self._factor = factor
        self._num_pieces += 1

    def sums(self) -> NoiseSums:
        """What this rank's part of the vector is to tell; nothing waits for the device."""
        self._measure_held()
        if self.is_given_up:
            return NoiseSums(squares=math.inf, num_pieces=self._num_pieces, cost=self._cost)
        return NoiseSums(squares=self._total, num_pieces=self._num_pieces, cost=self._cost)

    def _unfrozen(self) -> list[int]:
        return [index for index in self._measure.indexes if self._parameters[index].requires_grad]

    def _hooked(self, index: int) -> RemovableHandle:
        def on_gradient(gradient: torch.Tensor) -> None:
            if self.is_given_up:
                return
            if index in self._arrived:  # in parts, as of reentrant checkpoints: their squares do not add up
                self._total = math.inf
            self._arrived.add(index)
            self._indexes.append(index)
            self._gradients.append(gradient if gradient.layout is torch.strided else gradient.to_dense())
            self._held_numel += gradient.numel()
            if self._held_numel >= self._measure.portion_numel:
                self._measure_held()

        return self._parameters[index].register_hook(on_gradient)  # type: ignore[no-untyped-call,no-any-return]  # torch's

    def _measure_held(self) -> None:
        if not self._gradients:
            return
        started_s = time.perf_counter()
        try:
            with torch.no_grad():
                self._total = self._total + self._factor * self._measure.square(self._indexes, self._gradients)
        except (RuntimeError, MemoryError) as error:
            if not memory.is_out_of_memory(error):
                raise
            self.give_up(described(error))
        self._forget()
        self.seconds += time.perf_counter() - started_s

    def _forget(self) -> None:
        self._indexes, self._gradients, self._held_numel = [], [], 0


def _is_on_host(parameters: Sequence[nn.Parameter]) -> bool:
    return parameters[0].device.type == "cpu"


def _portions(indexes: Sequence[int], gradients: Sequence[torch.Tensor], numel: int) -> list[list[int]]:
    portions: list[list[int]] = []
    room = 0
    for i in indexes:
        if room <= 0:
            portions.append([])
            room = numel
        portions[-1].append(i)
        room -= gradients[i].numel()
    return portions


def _moments(parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer) -> list[_Moment | None] | None:
    """By parameter, None where there is no state yet; None for all where the optimizer is of another kind, or young.

    Told by what the state holds and not by the class, since users bring optimizers of their own.
    """
    groups = {p: group for group in optimizer.param_groups for p in group["params"]}
    found = {i: (state, groups.get(p, {})) for i, p in enumerate(parameters) if (state := optimizer.state.get(p))}
    if not found or not all(_is_like_adam(parameters[i], *held) for i, held in found.items()):
        return None
    steps = _read([state["step"] for state, _ in found.values()])
    if max(steps) < MIN_STEPS:
        return None
    moments: list[_Moment | None] = [None] * len(parameters)
    for (i, (state, group)), step in zip(found.items(), steps, strict=True):
        if step < 1:
            continue
        unbiased = math.sqrt(1.0 - float(group["betas"][1]) ** step)
        moments[i] = _Moment(square=state["exp_avg_sq"], unbiased=unbiased, epsilon=unbiased * float(group["eps"]))
    return _floored(moments)


def _floored(moments: Sequence[_Moment | None]) -> list[_Moment | None]:
    """With ``FLOOR`` of a parameter's usual second moment added to each of its numbers'; waits once for the device."""
    held = [m.square for m in moments if m is not None]
    usual = torch.stack([square.mean() for square in held]).sqrt().tolist() if held else []
    floors = iter(usual)
    return [None if m is None else replace(m, epsilon=m.epsilon + FLOOR * next(floors)) for m in moments]


def _is_like_adam(parameter: nn.Parameter, state: Mapping[str, Any], group: Mapping[str, Any]) -> bool:
    square = state.get("exp_avg_sq")
    is_real = isinstance(square, torch.Tensor) and square.is_floating_point()
    is_same = is_real and square is not None and (square.shape, square.device) == (parameter.shape, parameter.device)
    return is_same and "step" in state and len(group.get("betas", ())) == 2 and "eps" in group


def _read(steps: Sequence[torch.Tensor | float]) -> list[float]:
    """As numbers, with one wait for the device."""
    tensors = [step for step in steps if isinstance(step, torch.Tensor)]
    if len(tensors) < len(steps):
        return [float(step) for step in steps]
    return [float(step) for step in torch.stack(tensors).tolist()]
