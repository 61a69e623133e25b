"""A task whose forward passes hold 2 MiB a sample, and take 30 ms besides, as if it waited for data."""

from __future__ import annotations

import time
from typing import Any

HELD_BYTES = 2 * 2**20
COST_S = 0.03


def build(config: dict[str, Any]) -> Any:
    """The entrypoint."""
    import torch

    from tests.training.tasks import Regression, mlp, mse
    from workers.task import TrainingTask

    def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        held = torch.ones(len(batch[0]), HELD_BYTES // 4)
        time.sleep(COST_S)
        return mse(model, batch) + 0.0 * held[0, 0]

    return TrainingTask(model=mlp(torch.float32), train_data=Regression(256, torch.float32), loss=loss)
