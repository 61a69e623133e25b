"""Checkpoints in storage without rename, as workers and controllers of several machines use it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.object_store import ObjectStore
from tests.training.group import Group
from tests.training.tasks import Gate, Regression, Script, mlp, mse
from workers.checkpoints import PIECES, list_checkpoints
from workers.control.restore import CheckpointSearch
from workers.plan import CheckpointSource
from workers.status import StopCause
from workers.storage import read
from workers.storage_urls import join, open_storage
from workers.task import TrainingTask
from workers.training.loading import load_checkpoint

BATCH, SAMPLES, STEPS = 12, 40, 10


@pytest.fixture
def url() -> Iterator[str]:
    with ObjectStore() as store:
        yield join(store.make_bucket(), "jobs", "job_1", "checkpoints")


def task() -> TrainingTask:
    model = mlp(torch.float64)
    next(iter(model.parameters())).requires_grad_(False)
    return TrainingTask(model=model, train_data=Regression(SAMPLES, torch.float64), loss=mse)


def test_a_job_saves_to_an_object_store_and_goes_on_from_it_past_a_damaged_one(url: str) -> None:
    spec = {"steps": STEPS, "batch": {"global_size": BATCH}, "checkpoint": {"every_steps": 4, "keep": 3}}
    script = Script(task=task, gate=Gate())
    with Group(script, **spec) as group:
        group.checkpoints = url
        assert script.gate is not None
        first = group.start(2)
        group.train(first)
        group.await_done(first)
        storage = open_storage(url)
        infos = list_checkpoints(storage)
        assert infos[-1].is_final
        assert infos[-1].round == STEPS
        [moving] = [key for key in storage.keys(PIECES) if infos[-1].path in key and key.endswith("moving")]
        storage.write(moving, [read(storage, moving)[:-1]])
        later = group.start(1)
        newest = infos[-1]
        group.train(later, source=CheckpointSource(newest.path, newest.step, newest.cursor), lineage=2)
        stop = group.await_break(later)[later[0]].stop
        assert stop is not None
        assert stop.cause is StopCause.CHECKPOINT
        assert "is damaged: it ends before byte" in (stop.failure.message if stop.failure else "")
        found = CheckpointSearch(url, 0).look()
        assert found.latest is not None
        assert found.latest.round < STEPS
        assert [row.after["passed_over"] for row in found.rows] == [infos[-1].path]
        assert load_checkpoint(join(url, found.latest.path)).round == found.latest.round
        group.train(
            later, source=CheckpointSource(found.latest.path, found.latest.step, found.latest.cursor), lineage=3
        )
        group.await_done(later)
        redone = [record for key, record in sorted(group.records.items()) if key[0] == 3]
        assert [record.round for record in redone] == list(range(found.latest.round + 1, STEPS + 1))
        for record in redone:
            assert record.values["loss"] == pytest.approx(group.records[1, record.round].values["loss"], abs=1e-10)


def test_output_files_are_stored_when_a_worker_ends(tmp_path: Path) -> None:
    with ObjectStore() as store:
        place = join(store.make_bucket(), "jobs", "job_1", "output")

        def writes() -> TrainingTask:
            folder = Path(os.environ["CONCERTINA_OUTPUT"])
            (folder / "plots").mkdir()
            (folder / "plots" / "a.txt").write_text("drawn")
            return task()

        with Group(Script(task=writes), steps=1, batch={"global_size": BATCH}) as group:
            group.output = place
            workers = group.start(1)
            group.train(workers)
            group.await_done(workers)
        assert [(f.key, f.size_bytes) for f in open_storage(place).listed()] == [("plots/a.txt", 5)]
