"""A tiny paced training that tells too much of what ``config["loud"]`` names; it travels as a bundle, alone.

``log``: 100 MB a minute. ``values``: 10,000 a step. ``traceback``: an error of 10 MB at the third step, ``failure``:
a short one there. Anything else: it is quiet.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch import nn

from workers.task import TrainingTask

LOG_BYTES_S = 100e6 / 60
NUM_VALUES = 10_000
ERRORS = {"traceback": 10_000_000, "failure": 1}  # bytes
LINE = b"x" * 99 + b"\n"
PACE_S = 0.05
RAISES_AT = 3


class LoudLoss:
    """A mean square after a pause, and what comes with it."""

    def __init__(self, loud: str) -> None:
        self._loud = loud
        self._num_calls = 0
        self._written_s = time.monotonic()

    def __call__(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> Any:
        time.sleep(PACE_S)
        self._num_calls += 1
        x_B8, y_B = batch
        loss = nn.functional.mse_loss(model(x_B8)[:, 0], y_B)
        if self._loud == "log":
            now_s = time.monotonic()
            sys.stdout.buffer.write(LINE * int((now_s - self._written_s) * LOG_BYTES_S / len(LINE)))
            self._written_s = now_s
        if self._loud in ERRORS and self._num_calls >= RAISES_AT:
            raise ValueError("x" * ERRORS[self._loud])
        return (loss, {f"v{n}": float(n) for n in range(NUM_VALUES)}) if self._loud == "values" else loss


def build(config: dict[str, Any]) -> TrainingTask:
    """The entrypoint."""
    torch.manual_seed(0)
    x_N8 = torch.randn(1024, 8)
    data = torch.utils.data.TensorDataset(x_N8, x_N8.sum(1))
    return TrainingTask(model=nn.Linear(8, 1), train_data=data, loss=LoudLoss(str(config["loud"])))
