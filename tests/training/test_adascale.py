"""``adascale``: a large batch counts as what it is worth by the gradient noise, equal to a plain loop that does so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.training import reference
from tests.training.group import Group
from tests.training.rank import await_true
from tests.training.tasks import Gate, Regression, Script, mlp, mse
from workers.checkpoints import list_checkpoints
from workers.errors import Reason
from workers.lr import Decay, LrPlan, LrRule, gain
from workers.plan import CheckpointSource
from workers.status import RoundRecord
from workers.storage_urls import open_storage
from workers.task import TrainingTask

DTYPE, NUM_SAMPLES = torch.float64, 50
LR, BASE, BATCH, TOTAL = 0.02, 8, 32, 300
RATE = LrPlan(lr=LR, base_batch=BASE, rule=LrRule.ADASCALE, warmup_fraction=0.0, decay=Decay.LINEAR)
SPEC: dict[str, Any] = {
    "samples": TOTAL,
    "batch": {"global_size": BATCH, "lr_rule": "adascale", "micro_size": 4},
    "checkpoint": {"every_steps": 2},
}


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


class Job:
    """A regression by SGD; every model that a worker builds is kept, the last one last."""

    def __init__(self) -> None:
        self.gate, self.models = Gate(), list[nn.Module]()
        self.script = Script(gate=self.gate)
        self.script.task = self._task
        self.group = Group(self.script, **SPEC)

    def _task(self) -> TrainingTask:
        self.models.append(model := mlp(DTYPE))
        return TrainingTask(
            model=model, train_data=Regression(NUM_SAMPLES, DTYPE, self.script), loss=mse, optimizer=sgd
        )

    @property
    def records(self) -> list[RoundRecord]:
        return [record for _, record in sorted(self.group.records.items())]


def by_the_paper(records: Sequence[RoundRecord]) -> list[tuple[float, int]]:
    """The rate and the samples that count after each round, from the noise that the rounds before it told."""
    found, progress, noise = list[tuple[float, int]](), 0.0, None
    for record in records:
        step = BASE * gain(noise, BASE, BATCH)
        begun = min(math.floor(progress + 1e-9), TOTAL - step) / TOTAL  # a last step that comes short has a whole one's
        rate = LR * step / BASE * (1 - begun)
        progress += min(record.samples, BASE * gain(noise, BASE, record.samples))
        found.append((rate, math.floor(progress + 1e-9)))
        noise = record.values.get("noise_scale", noise)
    return found


def assert_is_plain(records: Sequence[RoundRecord], model: nn.Module) -> None:
    """The rates are the paper's, and with them a plain loop over as many samples comes to the same weights."""
    expected = by_the_paper(records)
    assert [record.cursor for record in records] == [counted for _, counted in expected]
    assert [record.values["lr"] for record in records] == pytest.approx([rate for rate, _ in expected], rel=1e-6)
    plain = mlp(DTYPE)
    optimizer = sgd(plain.parameters(), LR)
    sizes = [record.samples for record in records]
    for record, batch in zip(records, reference.batches_of(Regression(NUM_SAMPLES, DTYPE), sizes, 0), strict=True):
        optimizer.param_groups[0]["lr"] = record.values["lr"]
        reference.train(plain, optimizer, iter([batch]), mse)
    assert reference.distance(plain, model) < 1e-10


def test_a_job_counts_what_its_batches_are_worth_also_over_a_resize() -> None:
    job = Job()
    with job.group as group:
        workers = group.start(3)
        job.gate.close_at(6 * BATCH)
        group.train(workers[:2], lr=RATE)
        group.await_all(lambda s: s.round == 6, workers[:2])
        group.agree(workers, lr=RATE)
        job.gate.open()
        group.await_done(workers)
        records = job.records
    gains = [record.values["lr"] / LR for record in records]
    assert max(record.values["workers"] for record in records) == 3
    assert records[-1].cursor == TOTAL < sum(record.samples for record in records)
    assert gains[0] == 1.0  # nothing is known yet
    assert max(gains) > 1.1
    assert_is_plain(records, job.models[0])


def test_a_restored_job_goes_on_with_samples_that_were_not_drawn_yet() -> None:
    job = Job()
    with job.group as group:
        first, storage = group.start(2), open_storage(group.checkpoints)
        job.gate.close_at(9 * BATCH)
        group.train(first, lr=RATE)
        group.await_all(lambda s: s.round == 9, first)
        await_true(lambda: bool(list_checkpoints(storage)), "a checkpoint")
        later = group.start(2)
        group.halt(first, job.gate)
        saved = list_checkpoints(storage)[-1]
        kept = [record for record in job.records if record.cursor <= saved.cursor]
        group.train(later, lr=RATE, lineage=2, source=CheckpointSource(saved.path, saved.step, saved.cursor))
        group.await_done(later)
        records = kept + [record for record in job.records if record.lineage == 2]
    assert kept[-1].cursor < sum(record.samples for record in kept)
    assert_is_plain(records, job.models[-1])


def test_another_optimizer_than_sgd_is_refused_by_name() -> None:
    job = Job()
    assert job.script.task is not None
    task = job.script.task()
    job.script.task = lambda: replace(task, optimizer=None)
    with job.group as group:
        [worker] = group.start(1)
        failure = group.poll()[worker].failure
    assert failure is not None
    assert "adascale, which is for SGD, and the optimizer is AdamW" in failure.message
    assert failure.reason is Reason.USER_ERROR
