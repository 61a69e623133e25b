from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from service.reconciler import sight
from service.reconciler.process import Exit, Process
from service.records import ClusterView, JobRow
from service.schedule_spec import parse_schedule_spec
from service.settings import Settings
from service.states import JobState
from service.store.opening import Store, open_store
from service.supervise.home import Home
from service.supervise.ray_record import RayRecord, write_ray_record
from service.times import rfc3339
from tests.fakes import FakeCluster
from tests.service.given import spec
from tests.service.scheduled import schedule_document
from workers.errors import Reason
from workers.storage import MARK

pytestmark = pytest.mark.anyio

OWN = RayRecord(address="127.0.0.1:1", is_own=True, temp_dir="/nonexistent")


@dataclass
class Scene:
    """Reconciler processes, one after another, over one store and one cluster."""

    settings: Settings
    store: Store
    cluster: FakeCluster = field(default_factory=lambda: FakeCluster(total=1_000_000))
    runs: list[asyncio.Task[Exit]] = field(default_factory=list)

    def __post_init__(self) -> None:
        Home(self.settings.home).run.mkdir(mode=0o700)
        self.announce(OWN)

    def announce(self, record: RayRecord) -> None:
        write_ray_record(Home(self.settings.home).ray_file, record)

    def start(self) -> tuple[Process, asyncio.Task[Exit]]:
        process = Process(self.settings, self.store.reconciler, make_cluster=lambda address, namespace: self.cluster)
        self.runs.append(asyncio.create_task(process.run()))
        return process, self.runs[-1]

    async def running_job(self) -> JobRow:
        job = (await self.store.jobs.submit(spec())).job
        return await self.until(job, lambda row: row.state is JobState.RUNNING)

    async def told_error(self, holds: Callable[[str], bool] = bool) -> str:
        """What the store is first told of a cluster that cannot be used, and that is so."""
        for _ in range(1500):
            stored = await self.store.telemetry.cluster()
            if stored is not None and stored.view.error and holds(stored.view.error):
                return stored.view.error
            await asyncio.sleep(0.01)
        raise AssertionError("nothing was told")

    async def until(self, job: JobRow, holds: Callable[[JobRow], bool]) -> JobRow:
        for _ in range(1500):
            row = await self.store.reconciler.job(job.id)
            assert row is not None
            if holds(row):
                return row
            await asyncio.sleep(0.01)
        raise AssertionError(f"never came true; last: {row}")

    async def end(self) -> None:
        for run in self.runs:
            run.cancel()
        await asyncio.wait(self.runs)
        await self.cluster.lose_everything()


class Hesitant(FakeCluster):
    """Tells its nodes once so late that `liveness_s` of 0.2 s are over, and leaves the next question unanswered."""

    def __init__(self, total: int) -> None:
        super().__init__(total=total)
        self._has_been_long = False
        self.has_hesitated = asyncio.Event()

    async def view(self) -> ClusterView:
        if not self._has_been_long:
            await asyncio.sleep(0.3)
            self._has_been_long = True
        return await super().view()

    async def is_reachable(self) -> bool:
        if self._has_been_long and not self.has_hesitated.is_set():
            self.has_hesitated.set()
            return False
        return await super().is_reachable()


@pytest.fixture
async def scene(settings: Settings) -> AsyncIterator[Scene]:
    store = open_store(settings.database_url)
    made = Scene(settings, store)
    yield made
    await made.end()
    await store.close()


async def test_with_a_ray_of_our_own_jobs_save_before_the_process_ends(scene: Scene) -> None:
    process, end = scene.start()
    job = await scene.running_job()
    process.request_stop()
    assert await asyncio.wait_for(end, 20) is Exit.DONE
    row = await scene.until(job, lambda row: True)
    assert (row.state, row.reason) == (JobState.QUEUED, Reason.PREEMPTED)
    _, end = scene.start()
    assert (await scene.until(job, lambda row: row.state is JobState.RUNNING)).attempt == 2


async def test_with_somebody_elses_ray_jobs_go_on_without_the_service(scene: Scene) -> None:
    scene.announce(RayRecord(address="127.0.0.1:1", is_own=False, temp_dir="/nonexistent"))
    process, end = scene.start()
    job = await scene.running_job()
    process.request_stop()
    assert await asyncio.wait_for(end, 20) is Exit.DONE
    row = await scene.until(job, lambda row: True)
    assert (row.state, row.attempt) == (JobState.RUNNING, 1)
    assert await scene.cluster.names() != []


async def test_a_ray_of_several_machines_is_refused_with_storage_that_one_of_them_sees(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.reconciler.process.REFUSED_S", 0.05)
    scene.cluster.machines, scene.cluster.blind = ("n", "m"), {"m"}
    scene.announce(RayRecord(address="127.0.0.1:1", is_own=False, temp_dir="/nonexistent"))
    scene.start()
    job = (await scene.store.jobs.submit(spec())).job
    error = await scene.told_error()
    assert "was not found on m (m)" in error
    assert "--storage" in error
    assert (await scene.until(job, lambda row: True)).state is JobState.QUEUED
    assert scene.cluster.launches == []
    scene.cluster.blind = set()
    await scene.until(job, lambda row: row.state is JobState.RUNNING)
    assert list(Path(scene.settings.storage_url).glob(".probe-*")) == []


async def test_a_storage_that_hangs_at_the_start_is_told_of_and_asked_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, lay = threading.Event(), sight._lay
    monkeypatch.setattr("service.reconciler.process.REFUSED_S", 0.05)
    monkeypatch.setattr("service.patience.BOUND_S", 0.1)
    monkeypatch.setattr(sight, "_lay", lambda probe: (hangs.wait(30), lay(probe)))
    scene.announce(RayRecord(address="127.0.0.1:1", is_own=False, temp_dir="/nonexistent"))
    scene.start()
    job = (await scene.store.jobs.submit(spec())).job
    assert await scene.told_error() == "the storage cannot be written to: no answer within 0.1 s"
    # What was begun before may still be given up, and is tried again as soon.
    monkeypatch.setattr("service.patience.BOUND_S", 30.0)
    hangs.set()
    await scene.until(job, lambda row: row.state is JobState.RUNNING)


async def test_a_lost_head_is_told_and_the_process_leaves_before_ray_ends_it(scene: Scene) -> None:
    scene.settings = scene.settings.model_copy(update={"liveness_s": 0.2})
    _, end = scene.start()
    job = await scene.running_job()
    await scene.cluster.lose_everything()
    scene.cluster.is_up = False
    assert await asyncio.wait_for(end, 20) is Exit.CLUSTER_LOST
    row = await scene.until(job, lambda row: True)
    assert (row.state, row.reason) == (JobState.RECOVERING, Reason.CLUSTER_LOST)
    stored = await scene.store.telemetry.cluster()
    assert stored is not None
    assert not stored.view.is_up
    scene.cluster.is_up = True
    _, end = scene.start()
    assert (await scene.until(job, lambda row: row.attempt == 2 and row.state is JobState.RUNNING)).reason is None


async def test_one_question_without_an_answer_after_a_long_tick_is_no_loss(scene: Scene) -> None:
    scene.settings = scene.settings.model_copy(update={"liveness_s": 0.2})
    scene.cluster = Hesitant(total=1_000_000)
    scene.start()
    await asyncio.wait_for(scene.cluster.has_hesitated.wait(), 20)
    job = await scene.running_job()
    assert not scene.runs[0].done()
    assert (await scene.until(job, lambda row: True)).attempt == 1


async def test_a_lost_node_beside_the_service_is_told_and_awaited_and_the_workers_elsewhere_are_adopted(
    scene: Scene,
) -> None:
    scene.announce(RayRecord(address="127.0.0.1:1", is_own=False, temp_dir="/nonexistent"))
    _, end = scene.start()
    job = await scene.running_job()
    for name in list(scene.cluster.controllers):
        await scene.cluster.lose_controller(name)
    scene.cluster.is_node_up = False
    assert await asyncio.wait_for(end, 20) is Exit.CLUSTER_LOST
    assert "the Ray node on the service's machine is gone" in await scene.told_error()
    _, end = scene.start()
    assert await scene.told_error(lambda error: "start one" in error)
    await scene.until(job, lambda row: row.reason is Reason.CLUSTER_LOST)
    scene.cluster.is_node_up = True
    row = await scene.until(job, lambda row: row.state is JobState.RUNNING)
    assert (row.attempt, row.term, end.done()) == (1, 2, False)


async def test_a_head_at_another_address_makes_the_process_leave(scene: Scene) -> None:
    _, end = scene.start()
    await scene.running_job()
    scene.announce(RayRecord(address="127.0.0.1:2", is_own=True, temp_dir="/nonexistent"))
    assert await asyncio.wait_for(end, 20) is Exit.CLUSTER_LOST


async def test_whoever_waits_to_join_a_ray_ends_when_told_to(scene: Scene) -> None:
    scene.cluster.is_admitting = False
    process, end = scene.start()
    await asyncio.wait_for(scene.cluster.joining.wait(), 20)
    process.request_stop()
    assert await asyncio.wait_for(end, 20) is Exit.DONE
    stored = await scene.store.telemetry.cluster()
    assert stored is None


async def test_whoever_waits_to_join_a_ray_leaves_when_that_ends(scene: Scene) -> None:
    scene.cluster.is_admitting = False
    _, end = scene.start()
    await asyncio.wait_for(scene.cluster.joining.wait(), 20)
    scene.announce(RayRecord(address="127.0.0.1:2", is_own=True, temp_dir="/nonexistent"))
    assert await asyncio.wait_for(end, 20) is Exit.CLUSTER_LOST


async def test_without_a_ray_it_waits_and_beats(scene: Scene) -> None:
    Home(scene.settings.home).ray_file.unlink()
    scene.start()
    job = (await scene.store.jobs.submit(spec())).job
    assert await scene.told_error() == "Ray is being started"
    scene.announce(OWN)
    await scene.until(job, lambda row: row.state is JobState.RUNNING)


async def test_a_second_process_takes_over_and_the_first_one_leaves(scene: Scene, tmp_path: Path) -> None:
    _, first = scene.start()
    job = await scene.running_job()
    scene.start()
    assert await asyncio.wait_for(first, 30) is Exit.FENCED_OUT
    row = await scene.until(job, lambda row: True)
    assert (row.state, row.attempt, row.term) == (JobState.RUNNING, 1, 1)


async def test_schedules_fire_while_there_is_no_ray_and_the_job_runs_once_there_is(scene: Scene) -> None:
    scene.cluster.is_up = False
    now_s = time.time()
    past = open_store(scene.settings.database_url, lambda: now_s - 90)
    document = schedule_document(cron="* * * * *", end=rfc3339(now_s))
    schedule = (await past.schedules.create(*parse_schedule_spec(document, now_s - 90))).schedule
    await past.close()
    scene.start()
    while not (runs := await scene.store.schedules.runs(schedule.id, 10)):
        await asyncio.sleep(0.01)
    job = await scene.store.reconciler.job(str(runs[-1].child_id))
    assert job is not None
    assert job.state is JobState.QUEUED
    scene.cluster.is_up = True
    await scene.until(job, lambda row: row.state is JobState.RUNNING)


async def test_a_process_that_starts_while_storage_is_away_works_and_marks_it_when_it_is_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.reconciler.process.REFUSED_S", 0.01)
    place = Path(scene.settings.storage_url)
    place.touch()  # where the folder was there is none to be read
    _, run = scene.start()
    job = (await scene.store.jobs.submit(spec())).job
    row = await scene.until(job, lambda row: row.explanation is not None)
    assert row.explanation is not None
    assert "cannot be read" in row.explanation.summary
    place.unlink()
    await scene.until(job, lambda row: row.state is JobState.RUNNING and (place / MARK).is_file())
    assert not run.done()
