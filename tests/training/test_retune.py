"""Another learning rate and batch from one step on: equal to a plain loop that changes them there."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import nn

from tests.training import reference
from tests.training.group import Group
from tests.training.tasks import Gate, Regression, Script, mlp, mse
from workers.task import TrainingTask

DTYPE, NUM_SAMPLES = torch.float64, 50
LR, BATCH, NEW_LR, NEW_BATCH = 0.02, 12, 0.05, 27
TOTAL = 5 * BATCH + 5 * NEW_BATCH + 9
SIZES = [BATCH] * 5 + [NEW_BATCH] * 5 + [9]
BATCHES = [BATCH] * 5 + [NEW_BATCH] * 6


def adam(parameters: Any, lr: float) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, lr=lr)


def rates() -> list[float]:
    """By the linear decay over samples, and the square root of the batch over the base batch."""
    found = []
    for end, batch in zip(accumulate(SIZES), BATCHES, strict=True):
        lr = LR if batch == BATCH else NEW_LR
        found.append(lr * (batch / BATCH) ** 0.5 * (1 - (end - batch) / TOTAL))
    return found


def test_a_change_of_rate_and_batch_equals_a_plain_loop_also_over_a_resize() -> None:
    gate, models = Gate(), list[nn.Module]()
    script = Script(gate=gate)

    def task() -> TrainingTask:
        models.append(model := mlp(DTYPE))
        data = Regression(NUM_SAMPLES, DTYPE, script)
        return TrainingTask(model=model, train_data=data, loss=mse, optimizer=adam)

    script.task = task
    spec = {"samples": TOTAL, "batch": {"global_size": BATCH, "lr_rule": "sqrt"}, "optimizer": {"lr": LR}}
    with Group(script, **spec, lr_schedule={"warmup_fraction": 0.0, "decay": "linear"}) as group:
        workers = group.start(3)
        gate.close_at(4 * BATCH)
        first = group.train(workers[:2])
        gate.await_waiting(2)
        changed = {"lr": replace(first.lr, lr=NEW_LR), "global_batch": NEW_BATCH, "settings": 1}
        group.agree(workers[:2], generation=first.generation, **changed)
        gate.close_at(5 * BATCH + 2 * NEW_BATCH)
        group.await_all(lambda s: s.round == 7, workers[:2])
        group.agree(workers, **changed)
        gate.open()
        group.await_done(workers)
        records = [record for _, record in sorted(group.records.items())]

    model = mlp(DTYPE)
    optimizer = adam(model.parameters(), LR)
    expected, losses = rates(), []
    for number, batch in enumerate(reference.batches_of(Regression(NUM_SAMPLES, DTYPE), SIZES, 0)):
        optimizer.param_groups[0]["lr"] = expected[number]
        if number == 5:
            reference.follow_batch(optimizer, reference.last_noise(records[:5]), BATCH, NEW_BATCH)
        losses += reference.train(model, optimizer, iter([batch]), mse).losses
    assert [record.samples for record in records] == SIZES
    assert [record.cursor for record in records] == list(accumulate(SIZES))
    assert [record.values["global_batch"] for record in records] == SIZES
    assert [record.values["workers"] for record in records] == [2] * 8 + [3] * 3
    assert [record.values["lr"] for record in records] == pytest.approx(expected, rel=1e-12)
    assert [record.values["loss"] for record in records] == pytest.approx(losses, rel=1e-10, abs=1e-10)
    assert min(reference.distance(model, mine) for mine in models) < 1e-10
