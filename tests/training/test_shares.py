"""Other parts of the batch from one step on, again and again: what comes out is one plain loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.training import reference
from tests.training.group import Group
from tests.training.tasks import Gate, Regression, Script, mlp, mse
from workers.plan import Member
from workers.task import TrainingTask

NUM_SAMPLES, STEPS, BATCH, LR = 50, 14, 12, 0.05
SPLITS = [(4.0, 4.0, 4.0), (9.0, 2.0, 1.0), (1.0, 11.0, 0.0), (5.0, 6.0, 1.0)]


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def members(workers: list[str], weights: tuple[float, ...]) -> list[Member]:
    return [Member(worker_id=i, rank=rank, weight=weights[rank]) for rank, i in enumerate(workers)]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_parts_that_change_while_it_trains_leave_every_step_as_it_is(dtype: torch.dtype, bound: float) -> None:
    gate, models = Gate(), list[nn.Module]()
    script = Script(gate=gate)

    def task() -> TrainingTask:
        models.append(model := mlp(dtype))
        return TrainingTask(model=model, train_data=Regression(NUM_SAMPLES, dtype, script), loss=mse, optimizer=sgd)

    script.task = task
    with Group(script, samples=STEPS * BATCH - 5, batch={"global_size": BATCH}, optimizer={"lr": LR}) as group:
        workers = group.start(3)
        gate.close_at(2 * BATCH)
        first = group.train(members(workers, SPLITS[0]))
        in_force = [first.id]
        for n, weights in enumerate(SPLITS[1:]):
            num_done = 2 + 3 * n
            group.await_all(lambda s, num_done=num_done: s.round == num_done, workers)
            in_force.append(group.agree(members(workers, weights), generation=first.generation).id)
            gate.close_at((num_done + 3) * BATCH)
        gate.open()
        group.await_done(workers)
        records = [record for _, record in sorted(group.records.items())]

    model, sizes = mlp(dtype), [BATCH] * (STEPS - 1) + [BATCH - 5]
    plain = reference.train(
        model, sgd(model.parameters(), LR), reference.batches_of(Regression(NUM_SAMPLES, dtype), sizes, 0), mse
    )
    assert sorted({record.plan_id for record in records}) == in_force
    assert [record.samples for record in records] == sizes
    assert [record.values["loss"] for record in records] == pytest.approx(plain.losses, rel=bound, abs=bound)
    assert max(reference.distance(model, mine) for mine in models) < bound
