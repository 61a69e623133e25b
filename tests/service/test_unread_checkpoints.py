"""One checkpoint of a job cannot be read, while its storage answers: the job goes on, and nothing is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from service.folders import checkpoints_place
from service.records import JobRow
from service.states import JobState
from tests.bad_sectors import BadSectors, Fault, denied, half_gone
from tests.service.given import checkpoint
from tests.service.scene import Scene
from tests.service.test_reconciler import save_checkpoint
from workers.checkpoints import MANIFESTS, PIECES, checkpoint_names
from workers.storage_urls import open_storage

pytestmark = pytest.mark.anyio

OLDER, NEWER = checkpoint(10).path, checkpoint(20).path


def of(folder: str, name: str = "") -> Callable[[Path], bool]:
    return lambda path: path.parent.name == folder and path.name.startswith(name)


async def saved(scene: Scene, *steps: int) -> JobRow:
    """A job that runs, whose checkpoints are known, and of which nothing is left on the cluster since."""
    job = await scene.submit()
    await scene.until_state(job, JobState.RUNNING)
    for step in steps:
        save_checkpoint(scene, job, step=step)
    await scene.store.reconciler.register_checkpoints(job.id, [checkpoint(step) for step in steps], scene.fence)
    await scene.cluster.lose_everything()
    return job


async def registered(scene: Scene, job: JobRow) -> list[int]:
    return [info.step for info in await scene.store.reconciler.checkpoints(job.id)]


@pytest.mark.parametrize("fault", [denied, half_gone])
@pytest.mark.parametrize("folder", [MANIFESTS, PIECES])
async def test_a_job_goes_on_from_the_one_before(
    endless: Scene, folder: str, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.control.lookout.UNREAD_S", 0.05)
    monkeypatch.setattr("workers.control.lookout.STORAGE_RETRY_S", 0.01)
    job = await saved(endless, 10, 20)
    BadSectors(monkeypatch, fault).is_bad = of(folder, NEWER)
    await endless.restart()
    await endless.until(job, lambda row: row.attempt == 2 and row.state is JobState.RUNNING)
    await endless.look()
    rows = await endless.store.telemetry.timeline(job.id, 0, 100)
    [passed] = [row for row in rows if "is passed over" in row.reason]
    assert "cannot be read" in passed.reason
    assert f"/{folder}/{NEWER}" in passed.reason
    assert JobState.FAILED not in await endless.passed(job)


async def test_what_is_known_of_one_that_cannot_be_read_is_not_forgotten(
    endless: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await saved(endless, 10, 20)
    sectors = BadSectors(monkeypatch)
    sectors.is_bad = of(MANIFESTS, NEWER)
    await endless.restart()
    row = await endless.until(job, lambda row: row.attempt == 2 and row.state is JobState.STARTING)
    assert row.explanation is None or "storage" not in row.explanation.summary
    assert await registered(endless, job) == [10, 20]
    sectors.is_bad = lambda path: False
    await endless.until(job, lambda row: row.attempt == 2 and row.state is JobState.RUNNING)
    assert await registered(endless, job) == [10, 20]


async def test_where_none_can_be_read_the_storage_is_waited_for_and_none_is_lost(
    endless: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await saved(endless, 10, 20)
    sectors = BadSectors(monkeypatch)
    sectors.is_bad = of(MANIFESTS)
    await endless.restart()
    row = await endless.until(job, lambda row: row.explanation is not None)
    assert row.explanation is not None
    assert f"{MANIFESTS}/{OLDER}.json cannot be read: OSError: [Errno 5]" in row.explanation.summary
    assert row.attempt == 1
    assert await registered(endless, job) == [10, 20]
    sectors.is_bad = lambda path: False
    await endless.until(job, lambda row: row.attempt == 2 and row.state is JobState.RUNNING)
    names = checkpoint_names(open_storage(checkpoints_place(endless.settings.storage_url, job.id)))
    assert names == [OLDER, NEWER]
    assert await registered(endless, job) == [10, 20]
