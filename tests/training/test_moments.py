"""An optimizer's averages of squared gradients follow the global batch: what they would be had it been so all along."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.training import reference
from tests.training.group import Group
from tests.training.tasks import Gate, Regression, Script, mlp, mse
from workers.checkpoints import list_checkpoints
from workers.plan import Cause, CheckpointSource, TimelineKind
from workers.storage_urls import open_storage
from workers.task import TrainingTask
from workers.training.moments import follow_batch

DTYPE, NUM_SAMPLES, LR = torch.float64, 50, 0.02
BATCH, NEW_BATCH, BEFORE, AFTER = 12, 36, 6, 4
SIZES = [BATCH] * BEFORE + [NEW_BATCH] * AFTER
TOTAL = sum(SIZES)

ASKED = Cause(kind=TimelineKind.CHECKPOINT, actor="test", reason="asked for")


def averages(optimizer: torch.optim.Optimizer, signal: torch.Tensor, spread: torch.Tensor, batch: int) -> torch.Tensor:
    """What it remembers of many gradients, each a mean over so many samples."""
    [parameter] = optimizer.param_groups[0]["params"]
    generator = torch.Generator().manual_seed(batch)
    for _ in range(300):
        parameter.grad = signal + spread * torch.randn(signal.shape, generator=generator) / batch**0.5
        optimizer.step()
    held = optimizer.state[parameter]
    return held["exp_avg_sq" if "exp_avg_sq" in held else "square_avg"]


@pytest.mark.parametrize("noise_scale", [2.0, 50.0, 5000.0])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RMSprop])
@pytest.mark.parametrize(("before", "batch"), [(16, 128), (128, 16)])
def test_averages_come_to_what_the_other_batch_would_have_brought(
    kind: Any, noise_scale: float, before: int, batch: int
) -> None:
    signal = torch.full((4000,), 0.1)
    spread = signal * noise_scale**0.5
    made = [kind([nn.Parameter(torch.zeros(4000))], lr=0.0) for _ in range(2)]
    ours, wanted = (averages(each, signal, spread, size) for each, size in zip(made, (before, batch), strict=True))
    follow_batch(made[0], noise_scale, before, batch)
    assert float(ours.mean()) == pytest.approx(float(wanted.mean()), rel=0.02)


def test_where_nothing_is_known_of_the_noise_or_nothing_is_remembered_nothing_changes() -> None:
    parameter = nn.Parameter(torch.ones(3))
    for optimizer in (torch.optim.Adam([parameter]), torch.optim.SGD([parameter], lr=0.1, momentum=0.9)):
        parameter.grad = torch.ones(3)
        optimizer.step()
        held = {key: value.clone() for key, value in optimizer.state[parameter].items()}
        follow_batch(optimizer, None if "exp_avg_sq" in held else 100.0, 8, 64)
        assert all(torch.equal(optimizer.state[parameter][key], value) for key, value in held.items())


def adam(parameters: Any, lr: float) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, lr=lr)


class Job:
    """Two workers that wait before the last round of their first batch; ``models`` are those of all that there were."""

    def __init__(self) -> None:
        self.models: list[nn.Module] = []
        self.gate = Gate()
        self.script = Script(task=self._build, gate=self.gate)
        spec = {"samples": TOTAL, "batch": {"global_size": BATCH, "lr_rule": "none"}, "optimizer": {"lr": LR}}
        self.group = Group(self.script, **spec)

    def _build(self) -> TrainingTask:
        self.models.append(model := mlp(DTYPE))
        data = Regression(NUM_SAMPLES, DTYPE, self.script)
        return TrainingTask(model=model, train_data=data, loss=mse, optimizer=adam)

    def begin(self) -> list[str]:
        workers = self.group.start(2)
        self.gate.close_at((BEFORE - 1) * BATCH)
        self.group.train(workers)
        self.gate.await_waiting(2)
        return workers

    def agree(self, workers: list[str], **changes: Any) -> None:
        assert self.group.plan is not None
        self.group.agree(workers, generation=self.group.plan.generation, **changes)

    def assert_plain(self) -> None:
        """The last model is that of a plain loop that scales the second moments as the noise scale tells."""
        records = [record for _, record in sorted(self.group.records.items())]
        assert [record.values["global_batch"] for record in records] == SIZES
        noise_scale = reference.last_noise(records[:BEFORE])
        assert noise_scale > 1.0
        assert reference.distance(plain(noise_scale), self.models[-1]) < 1e-10
        assert reference.distance(plain(0.0), self.models[-1]) > 1e-6


def plain(noise_scale: float) -> nn.Module:
    model = mlp(DTYPE)
    optimizer = adam(model.parameters(), LR)
    for number, batch in enumerate(reference.batches_of(Regression(NUM_SAMPLES, DTYPE), SIZES, 0)):
        if number == BEFORE:
            reference.follow_batch(optimizer, noise_scale, BATCH, NEW_BATCH)
        reference.train(model, optimizer, iter([batch]), mse)
    return model


def test_a_batch_that_grows_equals_a_plain_loop_that_scales_its_second_moments() -> None:
    job = Job()
    with job.group as group:
        workers = job.begin()
        job.agree(workers, global_batch=NEW_BATCH)
        job.gate.open()
        group.await_done(workers)
    job.assert_plain()


def test_a_checkpoint_knows_of_which_batch_its_moments_are() -> None:
    job = Job()
    with job.group as group:
        workers = job.begin()
        job.agree(workers, saves=1, cause=ASKED)
        job.gate.close_at(BEFORE * BATCH)
        storage = open_storage(group.checkpoints)
        group.await_all(lambda s: bool(list_checkpoints(storage)), workers)
        [saved] = list_checkpoints(storage)
        assert saved.global_batch == BATCH
        group.halt(workers, job.gate)
        [last] = group.start(1)
        source = CheckpointSource(saved.path, BEFORE, saved.cursor)
        group.train([last], source=source, global_batch=NEW_BATCH)
        group.await_done([last])
    job.assert_plain()


def test_a_checkpoint_of_a_batch_on_trial_is_gone_on_from_with_the_one_before() -> None:
    job = Job()
    with job.group as group:
        workers = job.begin()
        job.agree(workers, saves=1, cause=ASKED, global_batch=NEW_BATCH, judged_batch=BATCH)
        job.gate.open()
        group.await_done(workers)
        saved = list_checkpoints(open_storage(group.checkpoints))
    assert {info.global_batch for info in saved} == {BATCH}
