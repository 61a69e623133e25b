"""Measures how fast a bare loop trains a task on this machine.

``python -m workers.recipes.speed ENTRYPOINT CONFIG BATCH`` prints samples a second of one thread, as
one number; ``CONFIG`` is JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable

import torch
from torch.utils.data import default_collate

from workers.task import TrainingTask

WARM_UP_S = 0.5
MEASURED_S = 2.0


def measure(task: TrainingTask, batch_size: int, now: Callable[[], float] = time.perf_counter) -> float:
    """Samples a second of forward, backward and AdamW; blocks for about two and a half seconds."""
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=1e-4)
    collate = task.collate or default_collate
    cursor, num_samples = 0, 0
    begin_s = now()
    measured_from_s = None
    while measured_from_s is None or now() - measured_from_s < MEASURED_S:
        indices = [(cursor + i) % len(task.train_data) for i in range(batch_size)]
        result = task.loss(task.model, collate([task.train_data[i] for i in indices]))
        loss = result[0] if isinstance(result, tuple) else result
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        cursor += batch_size
        if measured_from_s is not None:
            num_samples += batch_size
        elif now() - begin_s >= WARM_UP_S:
            measured_from_s = now()
    return num_samples / (now() - measured_from_s)


def main(arguments: list[str]) -> None:
    entrypoint, config, batch_size = arguments
    module, function = entrypoint.split(":")
    torch.set_num_threads(1)  # a worker with one CPU gets one thread
    task: TrainingTask = getattr(importlib.import_module(module), function)(json.loads(config))
    print(f"{measure(task, int(batch_size)):.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
