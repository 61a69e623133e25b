"""A small training whose samples take their time: they wait, or they compute."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from workers.task import TrainingTask

NUM_SAMPLES, NUM_FEATURES, WIDTH = 4096, 512, 1536


class Slow:
    """Samples (features, target) that are waited for, as for a disk far away, or computed by this processor."""

    def __init__(self, sleep_s: float, burn_s: float) -> None:
        self._sleep_s, self._burn_s = sleep_s, burn_s

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._sleep_s:
            time.sleep(self._sleep_s)  # what is measured
        begun_s = time.thread_time()
        while time.thread_time() - begun_s < self._burn_s:
            sum(range(200))
        features = torch.sin(torch.arange(NUM_FEATURES) * (1.0 + index))
        return features, features[:10].sum()


def build(config: dict[str, Any]) -> TrainingTask:
    """``config``: ``sleep_s`` and ``burn_s`` a sample."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(NUM_FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
    model.append(nn.Linear(WIDTH, 1))
    return TrainingTask(model=model, train_data=Slow(config["sleep_s"], config["burn_s"]), loss=loss)


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Mean squared error."""
    features_BF, targets_B = batch
    return F.mse_loss(model(features_BF).squeeze(1), targets_B)
