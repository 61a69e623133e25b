"""A tiny paced training whose optimizer writes down every step. It travels as a bundle, so it stands alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from workers.task import TrainingTask

NUM_SAMPLES = 4096
NUM_FEATURES = 64
NUM_CLASSES = 10


class AuditedAdamW(torch.optim.AdamW):
    """AdamW that appends ``time pid number size`` to a file of its process after each step.

    ``number`` is the step count in its own state, so it tells what the state holds, whatever process
    or system carried it here. ``size`` is asked for at each step.
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float, folder: Path, size: Callable[[], int]) -> None:
        super().__init__(params, lr=lr)
        folder.mkdir(parents=True, exist_ok=True)
        self._audit = os.open(folder / f"{os.getpid()}.steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = size

    def step(self, closure: Any = None) -> Any:
        """One step, and one line about it: a single write, which a killed process leaves whole."""
        result = super().step(closure)
        number = int(self.state[self.param_groups[0]["params"][0]]["step"])
        os.write(self._audit, f"{time.monotonic():.6f} {os.getpid()} {number} {self._size()}\n".encode())
        return result


class Digits(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random points with labels that a linear map gives: as large as the real digits, made in no time."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.features_ND = torch.randn(NUM_SAMPLES, NUM_FEATURES, generator=generator)
        self.labels_N = (self.features_ND @ torch.randn(NUM_FEATURES, NUM_CLASSES, generator=generator)).argmax(1)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.features_ND[index], self.labels_N[index]


def make_model(hidden: int) -> nn.Module:
    """An MLP; 0.4 million parameters at ``hidden=600``."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(NUM_FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, NUM_CLASSES)
    )


class PacedLoss:
    """Cross-entropy after a pause of ``pace_s``; remembers the size of its latest batch."""

    def __init__(self, pace_s: float) -> None:
        self._pace_s = pace_s
        self.size = 0

    def __call__(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        features_BD, labels_B = batch
        self.size = len(labels_B)
        time.sleep(self._pace_s)
        return nn.functional.cross_entropy(model(features_BD), labels_B)


def build(config: dict[str, Any]) -> TrainingTask:
    """The entrypoint: ``config`` holds ``audit`` (a folder), ``pace_s`` and ``hidden``."""
    loss = PacedLoss(float(config["pace_s"]))
    folder = Path(config["audit"])
    return TrainingTask(
        model=make_model(int(config["hidden"])),
        train_data=Digits(),
        loss=loss,
        optimizer=lambda params, lr: AuditedAdamW(params, lr, folder, lambda: loss.size),
    )
