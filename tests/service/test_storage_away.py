"""The storage's disk goes away while the service runs, and comes back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from service.errors import UnavailableError
from service.folders import checkpoints_place
from service.records import JobRow
from service.replica import Claim
from service.settings import Settings
from service.states import JobState, Verb
from service.store.opening import Store
from tests.service.given import spec_document, zip_bytes
from tests.service.scene import Scene, last_key
from tests.service.test_api_jobs import assert_problem
from tests.service.test_reconciler import save_checkpoint
from workers.storage import MARK, StorageAwayError

pytestmark = pytest.mark.anyio


async def test_a_job_that_loses_its_cluster_meanwhile_waits_and_does_not_begin_anew(endless: Scene) -> None:
    job = await endless.submit()
    await endless.until_state(job, JobState.RUNNING)
    save_checkpoint(endless, job, step=10)
    root = Path(endless.settings.storage_url)
    away = root.rename(root.with_name("away"))
    root.mkdir()  # as the folder is on which the disk was mounted
    await endless.cluster.lose_everything()
    await endless.restart()
    row = await endless.until(job, lambda row: row.explanation is not None)
    assert row.explanation is not None
    assert f"the storage {root} is there without its file" in row.explanation.summary
    assert list(root.iterdir()) == []
    root.rmdir()
    away.rename(root)
    await endless.until(job, lambda row: row.attempt == 2 and row.state is JobState.RUNNING)
    assert [c.step for c in await endless.store.reconciler.checkpoints(job.id)] == [10]
    assert (checkpoints_place(str(root), job.id)) == endless.cluster.launches[-1][2].storage.checkpoints


async def test_a_job_that_loses_its_workers_meanwhile_waits_however_long_that_is(
    endless: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.control.lookout.STORAGE_S", 0.1)
    monkeypatch.setattr("workers.control.lookout.STORAGE_RETRY_S", 0.01)
    job = await endless.submit()
    await endless.until_state(job, JobState.RUNNING)
    save_checkpoint(endless, job, step=10)
    root = Path(endless.settings.storage_url)
    away = root.rename(root.with_name("away"))
    fleet = endless.cluster.fleets[last_key(endless)]
    for worker in list(fleet.workers):
        fleet.lose(worker, "killed")
    row = await endless.until(job, lambda row: row.explanation is not None)
    assert row.explanation is not None
    assert f"the storage {root} is not there" in row.explanation.summary
    away.rename(root)
    row = await endless.until(job, lambda row: row.state is JobState.RUNNING and row.attempt == 2)
    assert row.failure is None
    assert JobState.FAILED not in await endless.passed(job)


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[object]]]:
    """From when it is called on storage gives no answer, as a mount whose server is away; what is asked of it."""
    goes_on, asked = threading.Event(), []

    def wait(storage: object, *_: object) -> list[object]:
        asked.append(storage)
        goes_on.wait(30)
        return []

    def begin() -> list[object]:
        monkeypatch.setattr("service.patience.BOUND_S", 1.0)
        monkeypatch.setattr("service.reconciler.listing.list_readable", lambda storage: (wait(storage), frozenset()))
        monkeypatch.setattr("service.reconciler.pursuit.remove_unfinished", wait)
        monkeypatch.setattr("service.files.checkpoint_names", wait)
        monkeypatch.setattr("service.replica.storage_mark", wait)
        return asked

    yield begin
    goes_on.set()


async def test_a_job_is_cancelled_though_storage_hangs(endless: Scene, hang: Callable[[], list[object]]) -> None:
    job = await endless.submit(workers=1)
    await endless.until_state(job, JobState.RUNNING)
    hang()
    await endless.say(job, Verb.CANCEL)
    await endless.until_state(job, JobState.CANCELLED)


async def running(endless: Scene) -> list[JobRow]:
    """Three jobs that run."""
    jobs = [await endless.submit(workers=1) for _ in range(3)]
    for job in jobs:
        await endless.until_state(job, JobState.RUNNING)
    return jobs


async def test_who_takes_over_waits_once_for_a_storage_that_hangs_and_leads(
    endless: Scene, hang: Callable[[], list[object]]
) -> None:
    jobs = await running(endless)
    asked = hang()
    await endless.restart()
    assert len(asked) == 1
    row = await endless.until(jobs[2], lambda row: row.explanation is not None)
    assert row.explanation is not None
    assert "no answer within 1 s" in row.explanation.summary
    await endless.say(jobs[2], Verb.CANCEL)
    await endless.until_state(jobs[2], JobState.CANCELLED)


async def test_who_takes_over_ends_cancelled_jobs_that_have_nothing_left_without_asking_a_storage_that_hangs_again(
    endless: Scene, hang: Callable[[], list[object]]
) -> None:
    jobs = await running(endless)
    asked = hang()
    for job in jobs:
        await endless.say(job, Verb.CANCEL)
    await endless.cluster.lose_everything()
    await endless.restart()
    assert [(await endless.job(job)).state for job in jobs] == [JobState.CANCELLED] * 3
    assert len(asked) == 1


async def test_a_storage_that_hangs_keeps_nobody_from_what_does_not_need_it(
    client: httpx2.AsyncClient, hang: Callable[[], list[object]]
) -> None:
    job = (await client.post("/api/v1/jobs", json=spec_document())).json()
    asked, path = hang(), f"/api/v1/jobs/{job['id']}"
    # Of a small machine: metrics are made in the loop's own threads.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))
    answers = await asyncio.gather(
        *(client.get(f"{path}/checkpoints") for _ in range(12)), client.get(f"{path}/metrics")
    )
    for answer in answers[:-1]:
        assert_problem(answer, 503, "UNAVAILABLE")
    assert len(asked) == 12
    assert answers[-1].status_code == 200


async def test_what_needs_the_storage_says_where_it_was(client: httpx2.AsyncClient, settings: Settings) -> None:
    root = Path(settings.storage_url)
    assert (await client.post("/api/v1/bundles", content=zip_bytes({"train.py": ""}))).status_code == 201
    job = (await client.post("/api/v1/jobs", json=spec_document())).json()
    assert (await client.get(f"/api/v1/jobs/{job['id']}/checkpoints")).json() == {"checkpoints": []}
    away = root.rename(root.with_name("away"))
    assert_problem(await client.get(f"/api/v1/jobs/{job['id']}/checkpoints"), 503, "UNAVAILABLE")
    problem = assert_problem(
        await client.post("/api/v1/bundles", content=zip_bytes({"train.py": "x = 1"})), 503, "UNAVAILABLE"
    )
    assert f"the storage {root} is not there" in problem["detail"]
    assert not root.exists()
    away.rename(root)
    assert (await client.post("/api/v1/bundles", content=zip_bytes({"train.py": "x = 1"}))).status_code == 201


async def test_a_service_that_starts_without_its_disk_makes_no_other_storage(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "storage"
    await Claim(store.reconciler, str(root)).take()
    name = await store.reconciler.installation_id()
    assert (root / MARK).read_text().strip() == name
    away = root.rename(tmp_path / "away")
    with pytest.raises(StorageAwayError, match=rf"has borne the mark.*write {name} into the file {root}/{MARK}"):
        await Claim(store.reconciler, str(root)).take()
    assert not root.exists()
    await Claim(store.reconciler, str(tmp_path / "new")).take()  # whoever says where is told apart
    away.rename(root)
    await Claim(store.reconciler, str(root)).take()


async def test_a_storage_that_hangs_is_looked_at_for_its_mark_by_one_thread_however_often_that_is_tried(
    store: Store, tmp_path: Path, hang: Callable[[], list[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, claim = hang(), Claim(store.reconciler, str(tmp_path / "storage"))
    monkeypatch.setattr("service.patience.BOUND_S", 0.05)
    for _ in range(3):
        with pytest.raises(UnavailableError, match=r"no answer within 0\.05 s"):
            await claim.hold()
    assert len(asked) == 1
