"""Measures how fast a bare loop trains a task on this machine.

``python -m workers.recipes.speed ENTRYPOINT CONFIG BATCH`` prints samples a second of one thread that has a
CPU to itself, as one number; ``CONFIG`` is JSON.
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
STRETCH_S = 0.4
NUM_STRETCHES = 3


def measure(task: TrainingTask, batch_size: int, now: Callable[[], float] = time.process_time) -> float:
    """Samples a second of forward, backward and AdamW; blocks for about two seconds of CPU time.

    Seconds of CPU time, and the best of several stretches: what else the machine does at the moment only ever slows
    it down.
    """
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=1e-4)
    collate = task.collate or default_collate
    cursor, rates = 0, []
    for stretch_s in (WARM_UP_S, *[STRETCH_S] * NUM_STRETCHES):
        begin_s, begin = now(), cursor
        while now() - begin_s < stretch_s:
            indices = [(cursor + i) % len(task.train_data) for i in range(batch_size)]
            result = task.loss(task.model, collate([task.train_data[i] for i in indices]))
            optimizer.zero_grad()
            torch.autograd.backward(result[0] if isinstance(result, tuple) else result)
            optimizer.step()
            cursor += batch_size
        rates.append((cursor - begin) / (now() - begin_s))
    return max(rates[1:])


def main(arguments: list[str]) -> None:
    entrypoint, config, batch_size = arguments
    module, function = entrypoint.split(":")
    torch.set_num_threads(1)  # a worker with one CPU gets one thread
    task: TrainingTask = getattr(importlib.import_module(module), function)(json.loads(config))
    print(f"{measure(task, int(batch_size)):.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
