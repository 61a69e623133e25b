"""Trainings that end in several ways; each is an entrypoint of its own, and all train the same small model."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import nn

from workers.task import TrainingTask

CURSED_STEP = 4
GREED_BYTES = 8 * 2**30

Loss = Callable[[nn.Module, Any], Any]


class Points(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Points on a plane that goes through the origin."""

    def __init__(self, num_samples: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._x_N4 = torch.randn(num_samples, 4, generator=generator)

    def __len__(self) -> int:
        return len(self._x_N4)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x_4 = self._x_N4[index]
        return x_4, x_4.sum()


def training(**changes: Any) -> TrainingTask:
    """A model of zeros, so that weights of any other number were learned, or came from elsewhere."""
    model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)
    parts = {
        "model": model,
        "train_data": Points(16),
        "loss": error_of,
        "optimizer": lambda params, lr: torch.optim.SGD(params, lr=lr),
    }
    return TrainingTask(**{**parts, **changes})


def error_of(model: nn.Module, batch: Any) -> tuple[torch.Tensor, dict[str, float]]:
    """The squared error, and what the numbers that were computed with tell apart: 1 and the next one."""
    x_B4, y_B = batch
    told_B = model(x_B4)[:, 0]
    return (told_B.float() - y_B).square().mean(), {"next_to_1": torch.finfo(told_B.dtype).eps}


def from_step(step: int, does: Callable[[], None]) -> Loss:
    """The loss of a training whose code does something else in each step from this one on."""
    calls = count(1)

    def loss(model: nn.Module, batch: Any) -> Any:
        if next(calls) >= step:
            does()
        return error_of(model, batch)

    return loss


class Marked(str):
    """As template engines have it: a text that stays what it is. The service cannot import it."""

    def __str__(self) -> str:
        return self


def take_the_cursed_step() -> None:
    raise ValueError(Marked("this step is cursed"))


def build(config: dict[str, Any]) -> TrainingTask:
    return training()


def is_cursed(config: dict[str, Any]) -> TrainingTask:
    return training(loss=from_step(CURSED_STEP, take_the_cursed_step))


def is_greedy(config: dict[str, Any]) -> TrainingTask:
    return training(loss=from_step(2, lambda: print(torch.empty(GREED_BYTES, dtype=torch.uint8).shape)))


def has_no_data(config: dict[str, Any]) -> TrainingTask:
    return training(train_data=Points(0))


def evaluates_nothing(config: dict[str, Any]) -> TrainingTask:
    return training(evaluate=lambda model, batch: {"error": error_of(model, batch)[0]})
