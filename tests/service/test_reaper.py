"""What the leader removes from storage, and what it must leave where it is."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, delete

from service.bundles import Bundles
from service.folders import BUNDLES, JOBS, checkpoints_place
from service.reconciler import reaper
from service.records import BundleRow, JobRow
from service.replica import Claim
from service.states import JobState, Verb
from service.store.bundles import BUNDLE_GRACE_S
from service.store.schema import jobs
from tests.object_store import ObjectStore
from tests.service.given import Clock, zip_bytes
from tests.service.scene import Scene
from tests.service.test_reconciler import save_checkpoint
from tests.waiting import LIMIT_S
from workers.assignment import JobKey
from workers.checkpoints import PIECES, checkpoint_name, draft_key, manifest_key
from workers.control.names import controller_name
from workers.retention import remove_unfinished
from workers.scratch import LOCK
from workers.storage import MARK
from workers.storage_urls import open_storage

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.reconciler.orphans.PATIENCE_S", 0.0)
    monkeypatch.setattr(reaper, "REAP_S", 0.0)
    monkeypatch.setattr(reaper, "BUNDLES_S", 0.0)


CODE, OTHER = zip_bytes({"train.py": "x = 1"}), zip_bytes({"train.py": "x = 2"})


async def uploaded(scene: Scene, data: bytes) -> BundleRow:
    url = scene.settings.storage_url
    claim = Claim(scene.store.leases, url)
    bundles = Bundles(scene.store.bundles, claim, url, scene.settings.home / "uploads", 10**6)

    async def body() -> AsyncIterator[bytes]:
        yield data

    return (await bundles.upload(body())).bundle


def stored(scene: Scene) -> list[str]:
    return open_storage(scene.settings.storage_url).keys(BUNDLES)


async def test_old_bundles_go_with_their_bytes_and_those_of_jobs_stay_and_serve(scene: Scene, clock: Clock) -> None:
    used, unused = await uploaded(scene, CODE), await uploaded(scene, OTHER)
    job = await scene.submit(entrypoint="train:build", bundle=used.id, steps=20)
    clock.advance(scene.settings.bundle_keep_s - 1)
    await scene.look()
    assert stored(scene) == sorted([used.key, unused.key])
    clock.advance(2)
    await scene.until_state(job, JobState.SUCCEEDED)
    await scene.look()
    assert stored(scene) == [used.key]
    assert scene.cluster.launches[0][2].bundle_file == f"{scene.settings.storage_url}/{used.key}"
    again = await uploaded(scene, OTHER)
    assert (again.id, stored(scene)) == (unused.id, sorted([used.key, again.key]))


async def test_bytes_of_an_upload_that_was_killed_go_once_it_is_given_up(scene: Scene, clock: Clock) -> None:
    storage = open_storage(scene.settings.storage_url)
    await scene.store.bundles.announce("bundles/a.zip")
    storage.write("bundles/a.zip.0123abcd.part", [b"half of it"])
    storage.write("bundles/b.zip", [b"of a process that died before it could tell"])
    await scene.look()
    assert stored(scene) == ["bundles/a.zip.0123abcd.part"], "it may still be written"
    clock.advance(reaper.UPLOAD_S + 1)
    await scene.look()
    assert stored(scene) == []


async def test_what_a_deletion_left_goes_also_when_no_job_is_left(scene: Scene, clock: Clock) -> None:
    bundle = await uploaded(scene, CODE)
    job = await scene.submit(entrypoint="train:build", bundle=bundle.id, steps=20)
    row = await scene.until_state(job, JobState.SUCCEEDED)
    storage = open_storage(scene.settings.storage_url)
    storage.write(f"{JOBS}/{job.id}/output/a.txt", [b"x"])
    log = scene.settings.home / "scratch" / "logs" / job.id / "1" / "1.0.log"
    log.parent.mkdir(parents=True)
    log.touch()
    clock.advance(BUNDLE_GRACE_S + 1)
    await scene.store.jobs.delete(row)  # and the API is killed before it has removed anything
    await scene.look()
    assert storage.keys() == [MARK]
    assert not log.exists()


async def test_files_of_jobs_that_a_restored_database_does_not_know_stay(endless: Scene) -> None:
    job = await endless.submit()
    await endless.until_state(job, JobState.RUNNING)
    save_checkpoint(endless, job, step=10)
    storage = open_storage(endless.settings.storage_url)
    saved = storage.keys(JOBS)

    def forget(conn: Connection) -> None:  # what it was when its copy was made
        conn.execute(delete(jobs).where(jobs.c.id == job.id))

    await endless.store.database.write_quietly(forget)
    for _ in range(3):
        await endless.look()
    assert storage.keys(JOBS) == saved


@pytest.mark.parametrize("mark", ["concertina-of-somebody-else", None])
async def test_nothing_is_removed_from_storage_that_is_not_known_to_be_ours(scene: Scene, mark: str | None) -> None:
    storage = open_storage(scene.settings.storage_url)
    storage.write(f"{JOBS}/job_of_another/output/a.txt", [b"x"])
    storage.write("bundles/of_another.zip", [b"x"])
    if mark is None:
        storage.delete(MARK)
    else:
        storage.write(MARK, [mark.encode()])
    for _ in range(3):
        await scene.look()
    assert len(set(storage.keys()) - {MARK}) == 2


async def test_what_workers_before_left_on_this_machine_goes_by_age(scene: Scene) -> None:
    code = scene.settings.home / "scratch" / "bundles" / "a"
    code.mkdir(parents=True)
    for path in (code.with_suffix(LOCK), Path(code.parents[1] / f"sweep{LOCK}")):
        path.touch()
        os.utime(path, (0, 0))
    await scene.look()
    assert not code.exists()


async def test_an_object_store_is_kept_clean_likewise(scene: Scene) -> None:
    with ObjectStore() as objects:
        url = objects.make_bucket() + "/team"
        storage = open_storage(url)
        await Claim(scene.store.reconciler, url).take()
        job, gone = await scene.submit(), await scene.submit()
        await scene.say(gone, Verb.CANCEL)
        await scene.store.jobs.delete(await scene.job(gone))
        for key in (f"{JOBS}/{gone.id}/checkpoints/pieces/a", f"{JOBS}/{job.id}/output/a.txt", f"{BUNDLES}/a.zip"):
            storage.write(key, [b"x"])
        broom = reaper.Reaper(dataclasses.replace(scene.premises, storage=url))
        for now_s in (0.0, 1.0):
            await broom.look(now_s)
        assert storage.keys() == [MARK, f"{JOBS}/{job.id}/output/a.txt"]


async def cancelled(scene: Scene, job: JobRow) -> None:
    await scene.say(job, Verb.CANCEL)
    await scene.until_state(job, JobState.CANCELLED)


async def paused(scene: Scene, job: JobRow) -> None:
    await scene.say(job, Verb.PAUSE)
    await scene.until_state(job, JobState.PAUSED)


async def cancelled_after_the_loss_of_the_cluster(scene: Scene, job: JobRow) -> None:
    """It waits then, and no controller is there that would see its end."""
    await scene.cluster.lose_everything()
    await scene.restart()
    await scene.say(job, Verb.CANCEL)
    assert (await scene.job(job)).state is JobState.CANCELLED


@pytest.mark.parametrize("ended", [cancelled, paused, cancelled_after_the_loss_of_the_cluster])
async def test_what_a_killed_save_left_goes_with_the_end_of_its_attempt(
    endless: Scene, ended: Callable[[Scene, JobRow], Awaitable[None]]
) -> None:
    job = await endless.submit()
    await endless.until_state(job, JobState.RUNNING)
    save_checkpoint(endless, job, step=10)
    storage = open_storage(checkpoints_place(endless.settings.storage_url, job.id))
    whole = storage.keys()
    save = f"{checkpoint_name(1, 1, 20, 1)}.0123abcd"
    for key in (draft_key(save), f"{PIECES}/{save}.moving", f"{PIECES}/{save}.still.0123abcd.part"):
        storage.write(key, [b"half of it"])
    await ended(endless, job)
    assert storage.keys() == whole


def test_a_removal_that_comes_late_leaves_the_saves_of_the_next_attempt(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))

    def begin(attempt: int) -> list[str]:
        """Everything of a save that is under way."""
        name = checkpoint_name(attempt, attempt, 20, 1)
        save = f"{name}.0123abcd"
        keys = [draft_key(save), f"{manifest_key(name)}.0123abcd.part", f"{PIECES}/{save}.moving"]
        for key in keys:
            storage.write(key, [b"half of it"])
        return keys

    begin(attempt=1)
    later = begin(attempt=2)
    remove_unfinished(storage, attempt=1)
    assert storage.keys() == sorted(later)


async def test_actors_of_no_job_are_ended_though_the_storage_hangs(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, stray = threading.Event(), controller_name(JobKey(job_id="job_gone", attempt=1), 1)

    def hang(root: str) -> list[tuple[str, str]]:
        goes_on.wait(LIMIT_S)
        return []

    monkeypatch.setattr(reaper, "_places", hang)
    monkeypatch.setattr("service.patience.BOUND_S", 0.05)
    scene.cluster.strays.add(stray)
    broom = reaper.Reaper(scene.premises)
    try:
        await asyncio.wait_for(broom.look(0.0), LIMIT_S / 2)
        await asyncio.wait_for(broom.look(1.0), LIMIT_S / 2)
        assert not goes_on.is_set()
        assert await scene.cluster.names() == []
    finally:
        goes_on.set()


async def test_a_storage_that_hangs_holds_up_no_job(endless: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, goes_on = threading.Event(), threading.Event()

    def hanging(root: str) -> list[tuple[str, str]]:
        asked.set()
        goes_on.wait(30)
        return []

    monkeypatch.setattr(reaper, "_places", hanging)
    try:
        job = await endless.submit(workers=1)
        await endless.until(job, lambda _: asked.is_set())
        await endless.until_state(job, JobState.RUNNING)
        await endless.say(job, Verb.CANCEL)
        await endless.until_state(job, JobState.CANCELLED)
        assert not goes_on.is_set()
    finally:
        goes_on.set()
