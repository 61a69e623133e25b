"""Entrypoints for tests, and gates that hold a dataset at a named sample until the test lets it go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from workers.task import TrainingTask

WAIT_S = 30.0


class Gate:
    """Counts how often samples are read; from ``closed_at`` reads on, readers wait until it is opened."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.num_read = 0
        self.num_waiting = 0
        self._closed_at: int | None = None

    def close_at(self, num_read: int) -> None:
        """Let readers pass until this many samples were read in all, then hold them."""
        with self._changed:
            self._closed_at = num_read
            self._changed.notify_all()

    def open(self) -> None:
        with self._changed:
            self._closed_at = None
            self._changed.notify_all()

    def await_waiting(self, num_waiting: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.num_waiting >= num_waiting, WAIT_S), "nobody came to the gate"

    def pass_through(self) -> None:
        with self._changed:
            if not self._is_open():
                self.num_waiting += 1
                self._changed.notify_all()
                assert self._changed.wait_for(self._is_open, WAIT_S), "the gate was never opened"
                self.num_waiting -= 1
            self.num_read += 1

    def _is_open(self) -> bool:
        return self._closed_at is None or self.num_read < self._closed_at


@dataclass
class Script:
    """What a test wants of a task; found by the name in its config. ``models`` are those of the tasks it made."""

    task: Callable[[], TrainingTask] | None = None
    gate: Gate | None = None
    seen: list[int] = field(default_factory=list)
    models: list[nn.Module] = field(default_factory=list)
    hooks: dict[str, Callable[..., Any]] = field(default_factory=dict)


SCRIPTS: dict[str, Script] = {}


def build(config: Mapping[str, Any]) -> TrainingTask:
    """The task that the test's script makes."""
    script = SCRIPTS[config["script"]]
    assert script.task is not None
    task = script.task()
    script.models.append(task.model)
    return task


class Regression:
    """Samples (x, y) of a fixed random function; logs the indexes it is asked for."""

    def __init__(self, num_samples: int, dtype: torch.dtype, script: Script | None = None) -> None:
        draw = torch.Generator().manual_seed(7)
        self.x = torch.randn(num_samples, 5, generator=draw, dtype=torch.float64).to(dtype)
        self.y = torch.tanh(self.x @ torch.randn(5, 2, generator=draw, dtype=torch.float64).to(dtype)) + 0.1
        self._script = script

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._script is not None:
            if self._script.gate is not None:
                self._script.gate.pass_through()
            self._script.seen.append(index)
        return self.x[index], self.y[index]


def mlp(dtype: torch.dtype = torch.float32, seed: int = 3) -> nn.Sequential:
    """A small net with the same weights every time, whatever other threads draw."""
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2)).to(dtype)
    reset(model, seed)
    return model


def reset(model: nn.Module, seed: int, scale: float = 0.4) -> None:
    """Give every parameter the values of its own stream of random numbers."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=draw, dtype=torch.float64))


def mse(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Mean squared error over the batch."""
    x, y = batch
    return F.mse_loss(model(x), y)
