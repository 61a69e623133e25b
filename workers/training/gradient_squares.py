"""Squared norms of the gradients of single micro-batches, taken in passing while backward makes them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from workers.training.exchange.vector import NoiseSums

MIN_STEPS = 5
"""Before this many steps an optimizer's second moments are too rough to measure by."""

_HELD_NUMEL = 2**18
"""Gradients are measured this many numbers at a time: few calls for small ones, and still in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """An Adam-like optimizer's running mean of a parameter's squared gradients, after ``step`` steps."""

    square: torch.Tensor
    step: float
    beta: float
    epsilon: float


class Measure:
    """By what a gradient's length is taken in one round, the same on all ranks since their optimizers hold the same.

    Where the optimizer divides by sqrt(v / (1 - beta2^t)) + eps, so does this (its steps have that geometry, and the
    noise that counts is that of the steps); the parameters that it holds no v of yet are left out. Else plain.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        moments = _moments(parameters, optimizer)
        self.is_preconditioned = moments is not None
        self._moments = moments or [None] * len(parameters)
        self.indexes = [i for i, m in enumerate(self._moments) if m is not None or moments is None]

    def square(self, indexes: Sequence[int], gradients: list[torch.Tensor]) -> torch.Tensor:
        """The squared length of the gradients of these parameters, a double; takes as much memory as they do."""
        if not self.is_preconditioned:
            return _square(torch._foreach_norm(gradients))
        moments = [m for i in indexes if (m := self._moments[i]) is not None]
        # g / (sqrt(v) / u + eps) = u g / (sqrt(v) + u eps), with u = sqrt(1 - beta2^t): one pass less over all numbers.
        unbiased = [math.sqrt(1.0 - m.beta**m.step) for m in moments]
        divided = torch._foreach_sqrt([m.square for m in moments])
        torch._foreach_add_(divided, [u * m.epsilon for u, m in zip(unbiased, moments, strict=True)])
        torch._foreach_reciprocal_(divided)
        torch._foreach_mul_(divided, gradients)
        return _square(torch._foreach_mul(torch._foreach_norm(divided), unbiased))

    def square_of_all(self, gradients: Sequence[torch.Tensor]) -> float:
        """The same of all parameters' gradients, measured in portions; it waits for the device."""
        return sum(
            float(self.square(portion, [gradients[i] for i in portion]))
            for portion in _portions(self.indexes, gradients)
        )


class PieceSquares:
    """Sum of weighted squared norms over a rank's micro-batches of one round; entered anew whenever it computes them.

    Tensor hooks see what this backward pass alone makes, before it is added to what was accumulated; nothing is
    copied. Outside of the context there are none, so that other rounds pay nothing.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], measure: Measure, cost: float) -> None:
        """``cost`` is told with the sums: what the measurement before took of its round on this rank."""
        self._parameters, self._measure, self._cost = parameters, measure, cost
        self._hooks: list[RemovableHandle] = []
        self._indexes: list[int] = []
        self._gradients: list[torch.Tensor] = []
        self._held_numel = 0
        self._factor = 0.0
        self._total: float | torch.Tensor = 0.0
        self._num_pieces = 0
        self.seconds = 0.0

    def __enter__(self) -> PieceSquares:
        started_s = time.perf_counter()
        self._forget()
        self._total, self._num_pieces = 0.0, 0
        self._hooks = [self._hooked(index) for index in self._measure.indexes]
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
        self._factor = factor
        self._num_pieces += 1

    def sums(self) -> NoiseSums:
        """What this rank's part of the vector is to tell; nothing waits for the device."""
        self._measure_held()
        return NoiseSums(squares=self._total, num_pieces=self._num_pieces, cost=self._cost)

    def _hooked(self, index: int) -> RemovableHandle:
        def on_gradient(gradient: torch.Tensor) -> None:
            self._indexes.append(index)
            self._gradients.append(gradient if gradient.layout is torch.strided else gradient.to_dense())
            self._held_numel += gradient.numel()
            if self._held_numel >= _HELD_NUMEL:
                self._measure_held()

        return self._parameters[index].register_hook(on_gradient)  # type: ignore[no-untyped-call,no-any-return]  # torch's

    def _measure_held(self) -> None:
        if not self._gradients:
            return
        started_s = time.perf_counter()
        with torch.no_grad():
            square = self._measure.square(self._indexes, self._gradients)
        self._total = self._total + self._factor * (square.item() if square.device.type == "cpu" else square)
        self._forget()
        self.seconds += time.perf_counter() - started_s

    def _forget(self) -> None:
        self._indexes, self._gradients, self._held_numel = [], [], 0


def _square(norms: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.stack(tuple(norms)).double().square_().sum()


def _portions(indexes: Sequence[int], gradients: Sequence[torch.Tensor]) -> list[list[int]]:
    portions: list[list[int]] = []
    room = 0
    for i in indexes:
        if room <= 0:
            portions.append([])
            room = _HELD_NUMEL
        portions[-1].append(i)
        room -= gradients[i].numel()
    return portions


def _moments(parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer) -> list[_Moment | None] | None:
    """By parameter, None where there is no state yet; None for all where the optimizer is of another kind, or young.

    Told by what the state holds and not by the class, since users bring optimizers of their own.
    """
    groups = {p: group for group in optimizer.param_groups for p in group["params"]}
    states = [optimizer.state.get(p) or None for p in parameters]
    found = [s for s in states if s is not None]
    if not found or not all(_is_like_adam(p, s, groups.get(p, {})) for p, s in zip(parameters, states, strict=True)):
        return None
    steps = _read([state["step"] for state in found])
    if max(steps) < MIN_STEPS:
        return None
    step_of = {id(state): step for state, step in zip(found, steps, strict=True)}
    return [
        None
        if s is None
        else _Moment(
            square=s["exp_avg_sq"],
            step=step_of[id(s)],
            beta=float(groups[p]["betas"][1]),
            epsilon=float(groups[p]["eps"]),
        )
        for p, s in zip(parameters, states, strict=True)
    ]


def _is_like_adam(parameter: nn.Parameter, state: Mapping[str, Any] | None, group: Mapping[str, Any]) -> bool:
    if state is None:
        return True
    square = state.get("exp_avg_sq")
    is_same = isinstance(square, torch.Tensor) and square.shape == parameter.shape and square.is_floating_point()
    return is_same and "step" in state and len(group.get("betas", ())) == 2 and "eps" in group


def _read(steps: Sequence[torch.Tensor | float]) -> list[float]:
    """As numbers, with one wait for the device."""
    tensors = [step for step in steps if isinstance(step, torch.Tensor)]
    if len(tensors) < len(steps):
        return [float(step) for step in steps]
    return [float(step) for step in torch.stack(tensors).tolist()]
