"""Steps of a worker's own, undone where they do not count, and the step that all take together by what they changed.

DiLoCo (Douillard et al. 2023, arXiv 2311.08105, algorithm 1): every worker trains by itself from the same parameters;
the mean of what they changed is the gradient of an outer optimizer, SGD with Nesterov momentum, at those parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class _Anchor:
    """The last commit, as a copy: what ``trained`` were, and what the optimizer held."""

    trained: list[nn.Parameter]
    parameters: list[torch.Tensor]
    state: dict[torch.Tensor, dict[str, Any]]
    groups: list[dict[str, Any]]


class Outer:
    """A ``StepState``: a round's own steps are staged in the parameters themselves, and a rollback takes them back.

    ``momentum`` is the same on all ranks; what the optimizer holds is each rank's own. While steps are taken, a copy of
    the trained parameters and of what the optimizer holds is kept.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        self._optimizer = optimizer
        self._anchor: _Anchor | None = None
        self._momentum: dict[str, torch.Tensor] = {}

    def begin(self, trained: Sequence[nn.Parameter]) -> None:
        """Keep the last commit, of its parameters these; once a round, before its first step."""
        self._anchor = _Anchor(
            trained=[*trained],
            parameters=[p.detach().clone() for p in trained],
            state={p: _copy(held) for p, held in self._optimizer.state.items()},
            groups=[_copy({k: v for k, v in group.items() if k != "params"}) for group in self._optimizer.param_groups],
        )

    def differences(self) -> list[torch.Tensor]:
        """What this rank's steps took from each parameter that ``begin`` was given."""
        assert self._anchor is not None
        now = [p.detach() for p in self._anchor.trained]
        return list(torch._foreach_sub(self._anchor.parameters, now))

    def step(self, lr: float, momentum: float) -> None:
        """From the last commit on, by what all took: their mean stands where gradients do. After ``begin``.

        What the optimizer holds stays as the rank's own steps left it.
        """
        assert self._anchor is not None
        trained = self._anchor.trained
        _put(trained, self._anchor.parameters)
        outer = torch.optim.SGD(trained, lr=lr, momentum=momentum, nesterov=momentum > 0)
        for parameter in trained:
            if (held := self._momentum.get(self._names[parameter])) is not None:
                outer.state[parameter]["momentum_buffer"] = held
        outer.step()
        found = {self._names[parameter]: outer.state[parameter].get("momentum_buffer") for parameter in trained}
        self._momentum = {name: held for name, held in found.items() if held is not None}

    def momentum(self) -> dict[str, torch.Tensor]:
        """The outer optimizer's, by the name of its parameter; by reference, empty before the first step."""
        return self._momentum

    def load(self, momentum: Mapping[str, torch.Tensor]) -> None:
        """Take over another's; the steps of a round that nobody finished are those of another state."""
        self._anchor = None
        mine = {name: parameter for parameter, name in self._names.items()}
        self._momentum = {name: held.detach().to(mine[name].device, copy=True) for name, held in momentum.items()}

    def commit(self) -> None:
        self._anchor = None

    def rollback(self) -> None:
        if self._anchor is None:
            return
        _put(self._anchor.trained, self._anchor.parameters)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._anchor.state)
        for group, kept in zip(self._optimizer.param_groups, self._anchor.groups, strict=True):
            group.update(kept)
        self._anchor = None


def _copy(held: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.detach().clone() if isinstance(v, torch.Tensor) else copy.deepcopy(v) for k, v in held.items()}


def _put(parameters: Sequence[nn.Parameter], values: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        torch._foreach_copy_([*parameters], [*values])
