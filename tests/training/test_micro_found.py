"""The micro-batch that fits and is the fastest, as workers find it while they train."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.training import reference
from tests.training.group import WAIT_S, Group, ProcessGroup
from tests.training.hungry import HELD_BYTES
from tests.training.tasks import Regression, Script, mlp, mse
from workers.status import WorkerStatus
from workers.task import TrainingTask
from workers.training import stopwatch

ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]
PART = 64
STEPS = 50  # sizes are tried for 40 rounds at most


def sgd(params: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=lr)


def slow_from(limit: int) -> Callable[[nn.Module, Any], torch.Tensor]:
    """A loss whose passes of more than ``limit`` samples take long, and each pass as such takes some time."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(0.001 if len(batch[0]) <= limit else 0.02)
        return mse(model, batch)

    return loss


def test_a_worker_finds_its_micro_batch_while_it_trains_as_plain_torch_would() -> None:
    models: list[nn.Module] = []

    def task() -> TrainingTask:
        models.append(model := mlp(torch.float64))
        samples = Regression(200, torch.float64)
        # Rows of tensors: there is no other way to read them that would be on trial.
        rows = TensorDataset(samples.x, samples.y)
        return TrainingTask(model=model, train_data=rows, loss=slow_from(16), optimizer=sgd)

    with Group(Script(task=task), steps=STEPS, batch={"global_size": PART}, optimizer={"lr": 0.05}) as group:
        workers = group.start(1)
        group.train(workers)
        status: WorkerStatus = group.await_done(workers)[workers[0]]
        losses = group.losses()
    model, data = mlp(torch.float64), reference.batches(Regression(200, torch.float64), PART, 0, STEPS)
    plain = reference.train(model, sgd(model.parameters(), 0.05), data, mse)
    assert losses == pytest.approx(plain.losses, abs=1e-10)
    assert reference.distance(plain.model, models[0]) < 1e-10
    [change] = status.micro_changes
    assert (change.before, change.after, status.micro_size) == (None, 16, 16)
    assert change.seconds[16] < change.seconds[8]
    assert change.seconds[16] < change.seconds[32]
    on_trial = [record.is_trial for _, record in sorted(group.records.items())]
    assert on_trial[:8] == [True] * 8
    assert not on_trial[-1]


def hungry(num_gpus: float, memory_bytes: int | None) -> WorkerStatus:
    """How a worker stands three rounds after it found its size, however many rounds it tried for that."""
    resources = {"gpus": num_gpus, "memory_bytes": memory_bytes}
    spec = {"steps": STEPS, "batch": {"global_size": PART}, "resources": resources}
    with ProcessGroup(entrypoint="tests.training.hungry:build", **spec) as group:

        def has_used_it(status: WorkerStatus) -> bool:
            last = [record for _, record in sorted(group.records.items())][-3:]
            return bool(status.micro_changes) and len(last) == 3 and not any(record.is_trial for record in last)

        workers = group.start(1)
        group.train(workers)
        return group.await_all(has_used_it, workers, limit_s=3 * WAIT_S)[workers[0]]


@pytest.mark.parametrize("num_gpus", [0, pytest.param(0.25, marks=ON_GPU)])
def test_a_worker_finds_the_largest_size_that_its_memory_holds_and_trains_on_with_it(num_gpus: float) -> None:
    roomy = hungry(num_gpus, None)
    assert [change.after for change in roomy.micro_changes] == [PART]
    told = roomy.footprint
    assert told is not None
    assert told.sample_bytes == pytest.approx(HELD_BYTES, rel=0.3)
    assert told.fixed_bytes is not None
    assert told.fixed_bytes + told.sample_bytes * PART == pytest.approx(told.peak_bytes, rel=0.1)
    assert told.limit_bytes is not None
    assert told.limit_bytes > told.peak_bytes
    tight = hungry(num_gpus, told.fixed_bytes + 40 * HELD_BYTES)  # what it held at a moment may be of a pass
    assert tight.micro_size in (16, 32)
    assert [change.after for change in tight.micro_changes][-1] == tight.micro_size
    assert tight.round is not None
    assert tight.cursor == tight.round * PART


def test_the_watch_leaves_out_what_a_thread_waited_for_a_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "schedstat"
    told.write_text("5 0 1\n")
    monkeypatch.setattr(stopwatch, "_SCHEDSTAT", told)
    watch = stopwatch.Stopwatch()
    assert watch.seconds() > 0.0
    told.write_text(f"5 {10**15} 1\n")
    assert watch.seconds() == 0.0
    told.unlink()
    assert watch.seconds() > 0.0
