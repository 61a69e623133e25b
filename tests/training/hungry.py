"""A task whose forward passes hold 6 MiB a sample, and wait 0.3 s however many those are, as if for data.

A machine may hand memory out slowly: what that takes comes on top, so that a larger pass takes less time a sample at
any speed of it. Of the code that a process has mapped from files more or less is resident, by tens of MiB: a few
samples hold much more than that.
"""

from __future__ import annotations

import time
from typing import Any

HELD_BYTES = 6 * 2**20
PASS_S = 0.3


def build(config: dict[str, Any]) -> Any:
    """The entrypoint."""
    import torch

    from tests.training.tasks import Regression, mlp, mse
    from workers.task import TrainingTask

    def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        held = torch.ones(len(batch[0]), HELD_BYTES // 4, device=batch[0].device)
        time.sleep(PASS_S)
        return mse(model, batch) + 0.0 * held[0, 0]

    return TrainingTask(model=mlp(torch.float32), train_data=Regression(256, torch.float32), loss=loss)
