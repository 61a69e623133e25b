from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from service.explain import Circumstances, explain
from service.folders import JOBS, checkpoints_place
from service.reconciler.launching import Launching
from service.reconciler.orphans import PATIENCE_S, Suspects
from service.reconciler.pursuit import MISSING
from service.reconciler.reconciler import ROOM_S
from service.records import JobRow, Scale
from service.settings import load_settings
from service.states import JobState, Verb
from service.store.port import FencedOutError
from tests.service.given import leader
from tests.service.scene import Scene, last_key
from tests.stored_checkpoint import store_checkpoint
from workers.assignment import JobKey
from workers.checkpoints import manifest_key
from workers.errors import Reason, UserCodeError
from workers.status import CheckpointInfo, Phase
from workers.storage_urls import open_storage

pytestmark = pytest.mark.anyio


async def test_a_job_goes_from_queued_to_succeeded(scene: Scene) -> None:
    job = await scene.submit(steps=20)
    row = await scene.until_state(job, JobState.SUCCEEDED)
    assert await scene.passed(job) == ["QUEUED", "STARTING", "RUNNING", "SUCCEEDED"]
    assert (row.attempt, row.num_current, row.num_desired) == (1, 0, 0)
    points = await scene.store.reconciler.acknowledged(job.id, 1)
    assert points.rounds == (1, 20)
    await scene.look()  # its controller is ended after the row has been written
    assert await scene.cluster.names() == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs ask for another size as soon as they have measured the present one."""
    monkeypatch.setattr("workers.advisors.scaling.REST_S", 0.0)
    monkeypatch.setattr("workers.control.sizing.ASK_S", 0.0)
    monkeypatch.setattr("service.reconciler.reconciler.VIEW_S", 0.0)


async def test_pinned_jobs_give_nothing_back_and_the_next_one_waits(endless: Scene) -> None:
    first, second = await endless.submit(workers=4), await endless.submit(name="second")
    await endless.until(first, lambda row: row.num_current == 4 and row.state is JobState.RUNNING)
    assert (await endless.job(second)).state is JobState.QUEUED
    await endless.say(first, Verb.CANCEL)
    await endless.until_state(second, JobState.RUNNING)
    assert (await endless.job(first)).state is JobState.CANCELLED


async def test_who_waits_for_room_is_looked_at_again_soon_after_a_job_has_left_some(
    endless: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's head learns of it a moment later than we do."""
    monkeypatch.setattr("service.reconciler.reconciler.ROOM_KNOWN_S", 60.0)  # a busy machine is slow to look
    first = await endless.submit(workers=4)
    await endless.until_state(first, JobState.RUNNING)
    await endless.submit(name="second", workers=4)
    monkeypatch.setattr(endless.cluster, "num_cpus", 3)
    await endless.say(first, Verb.CANCEL)
    await endless.until_state(first, JobState.CANCELLED)
    await endless.reconciler.settle(5)
    await asyncio.sleep(2 * ROOM_S)  # what ticks before have announced comes before the last one, not during it
    await endless.reconciler.tick()
    assert not endless.news.is_there
    await asyncio.sleep(2 * ROOM_S)
    assert endless.news.is_there


@pytest.mark.usefixtures("impatient")
async def test_an_elastic_job_takes_what_is_free_gives_way_to_the_next_and_grows_again(endless: Scene) -> None:
    first = await endless.submit()
    await endless.until(first, lambda row: row.num_current == 4 and row.state is JobState.RUNNING)
    second = await endless.submit(name="second", workers=1)
    await endless.until_state(second, JobState.RUNNING)
    await endless.until(first, lambda row: (row.num_current, row.num_desired) == (3, 3))
    await endless.say(second, Verb.CANCEL)
    await endless.until(first, lambda row: row.num_current == 4)
    entries = await endless.store.telemetry.timeline(first.id, 0, 100)
    resizes = [(e.actor, e.before["workers"], e.after["workers"]) for e in entries if e.kind == "resize"]
    assert resizes == [("service", 4, 3), ("scaling", 3, 4)]
    assert any(e.reason == f"made room for job {second.id}, which waits" for e in entries)


@pytest.mark.usefixtures("impatient")
async def test_a_pinned_size_reaches_the_controller_and_auto_frees_it(endless: Scene) -> None:
    job = await endless.submit()
    row = await endless.until(job, lambda row: row.num_current == 4 and row.state is JobState.RUNNING)
    await endless.store.jobs.set_scale(row, Scale(min=1, max=4, pinned=2, reason="save money"))
    row = await endless.until(job, lambda row: row.num_current == 2)
    assert row.num_desired == 2
    entries = await endless.store.telemetry.timeline(job.id, 0, 100)
    assert any(e.kind == "resize" and e.reason == "save money" and e.actor == "user" for e in entries)
    await endless.store.jobs.set_scale(row, Scale(min=1, max=3, reason="room again"))
    assert (await endless.until(job, lambda row: row.num_current == 3)).num_desired == 3


async def test_a_job_that_never_fits_is_told_so_and_holds_nobody_up(scene: Scene) -> None:
    big, small = await scene.submit(workers=9, batch={"global_size": 32}), await scene.submit(name="small", steps=20)
    await scene.until_state(small, JobState.SUCCEEDED)
    row = await scene.job(big)
    assert row.state is JobState.QUEUED
    assert row.explanation is not None
    assert "can never start on this cluster" in row.explanation.summary


async def test_pause_saves_and_resume_makes_a_new_attempt(endless: Scene) -> None:
    job = await endless.submit()
    await endless.until_state(job, JobState.RUNNING)
    await endless.say(job, Verb.PAUSE)
    row = await endless.until_state(job, JobState.PAUSED)
    assert row.num_current == 0
    await endless.reconciler.settle(5)  # the state is stored before the controller is ended
    assert await endless.cluster.names() == []
    await endless.say(job, Verb.RESUME)
    assert (await endless.until_state(job, JobState.RUNNING)).attempt == 2


async def test_a_dead_controller_gets_a_successor_that_adopts_the_workers(endless: Scene) -> None:
    job = await endless.submit()
    await endless.until(job, lambda row: row.num_current == 4 and row.state is JobState.RUNNING)
    key = last_key(endless)
    workers = set(endless.cluster.workers[key])
    await endless.cluster.lose_controller(f"controller/{job.id}/1/1")
    row = await endless.until(job, lambda row: row.term == 2 and row.num_current == 4)
    assert set(endless.cluster.workers[key]) == workers
    assert row.state is JobState.RUNNING
    assert await endless.passed(job) == ["QUEUED", "STARTING", "RUNNING"]
    rounds = (await endless.store.reconciler.acknowledged(job.id, 1)).rounds
    assert rounds[0] == 1, "no new lineage: nothing was restored"


async def test_a_silent_controller_gets_a_successor_and_is_killed(endless: Scene) -> None:
    job = await endless.submit()
    await endless.until_state(job, JobState.RUNNING)
    endless.cluster.silent.add(f"controller/{job.id}/1/1")
    await endless.until(job, lambda row: row.term == 2)
    await endless.until(job, lambda row: f"controller/{job.id}/1/1" in endless.cluster.killed)


async def test_a_new_reconciler_finds_running_jobs_and_changes_nothing(endless: Scene) -> None:
    job = await endless.submit()
    before = await endless.until(job, lambda row: row.num_current == 4 and row.state is JobState.RUNNING)
    await endless.restart()
    for _ in range(5):
        await endless.reconciler.tick()
    row = await endless.job(job)
    assert (row.attempt, row.term, row.state) == (before.attempt, before.term, JobState.RUNNING)
    assert len(endless.cluster.launches) == 1


async def test_an_intent_without_a_controller_is_carried_out_by_the_next_reconciler(endless: Scene) -> None:
    job = await endless.submit()
    await endless.store.reconciler.admit(job, 2, endless.fence)
    await endless.restart()
    row = await endless.until_state(job, JobState.RUNNING)
    assert row.attempt == 1


async def test_after_the_loss_of_the_cluster_jobs_are_queued_and_go_on(endless: Scene) -> None:
    job = await endless.submit()
    await endless.until_state(job, JobState.RUNNING)
    save_checkpoint(endless, job, step=10)
    await endless.cluster.lose_everything()
    await endless.restart()
    row = await endless.until(job, lambda row: row.attempt == 2 and row.state is JobState.RUNNING)
    assert row.reason is None
    assert await endless.passed(job) == ["QUEUED", "STARTING", "RUNNING", "RECOVERING", "QUEUED", "STARTING", "RUNNING"]
    events = await endless.store.jobs.events(job.id, 0, 100)
    assert [e.reason for e in events[3:5]] == [Reason.CLUSTER_LOST, Reason.CLUSTER_LOST]
    assert [c.step for c in await endless.store.reconciler.checkpoints(job.id)] == [10]


async def test_checkpoints_that_had_to_go_are_forgotten_while_the_job_trains(
    endless: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.reconciler.pursuit.LISTED_S", 0.0)
    job = await endless.submit(workers=1)
    await endless.until_state(job, JobState.RUNNING)
    [worker] = endless.cluster.fleets[last_key(endless)].workers.values()
    storage = open_storage(checkpoints_place(endless.settings.storage_url, job.id))
    for step in range(10, 60, 10):
        save_checkpoint(endless, job, step=step)
        storage.delete(manifest_key(checkpoint(step - 20).path))
        worker.asked = [checkpoint(step)]
        for _ in range(1000):
            await endless.look()
            if (found := [c.step for c in await endless.store.reconciler.checkpoints(job.id)])[-1:] == [step]:
                break
    assert found == [40, 50]


async def test_a_pausing_job_that_is_lost_is_paused_and_a_cancelled_one_cancelled(endless: Scene) -> None:
    one, two = await endless.submit(workers=1), await endless.submit(name="two", workers=1)
    for job in (one, two):
        await endless.until_state(job, JobState.RUNNING)
    await endless.reconciler.settle(5)
    await endless.say(one, Verb.PAUSE)
    await endless.say(two, Verb.CANCEL)
    await endless.cluster.lose_everything()
    await endless.restart()
    assert (await endless.job(one)).state is JobState.PAUSED
    assert (await endless.job(two)).state is JobState.CANCELLED


async def test_a_service_that_stops_lets_jobs_save_and_queues_them(endless: Scene) -> None:
    job = await endless.submit()
    await endless.until_state(job, JobState.RUNNING)
    endless.reconciler.is_leaving = True
    row = await endless.until_state(job, JobState.QUEUED)
    assert row.reason is Reason.PREEMPTED
    await endless.reconciler.settle(5)
    assert await endless.cluster.names() == []
    assert await endless.reconciler.tick() == 0


async def test_a_missing_secret_fails_the_job_and_says_where_to_set_it(scene: Scene) -> None:
    job = await scene.submit(env={"KEY": {"secret": "NO_SUCH_SECRET_HERE"}})
    row = await scene.until_state(job, JobState.FAILED)
    assert row.reason is Reason.USER_ERROR
    told = explain(row, Circumstances(before=(), num_before=0, cluster=None, now_s=0.0))
    assert "env.KEY asks for the secret 'NO_SUCH_SECRET_HERE'" in told.summary
    assert "where `concertina serve` is started" in told.summary
    assert told.remedy == MISSING
    assert not any("launching.py" in line for line in told.details), "lines of the service's own code help nobody"


async def test_the_bounds_of_the_settings_are_a_controllers_and_its_workers(scene: Scene) -> None:
    settings = load_settings(
        {"home": scene.settings.home, "install_s": 100, "build_s": 7200, "data_s": 50, "step_s": 1000, "review_s": 60},
        {},
    )
    job = await scene.submit()
    launch = await Launching(settings, scene.store.reconciler, settings.home).launch(job)
    bounds = launch.settings.phase_bounds_s
    phases = (Phase.INSTALL, Phase.BUILD, Phase.DATA, Phase.COMPUTE, Phase.EXCHANGE, Phase.EVAL)
    assert [bounds[phase] for phase in phases] == [260.0, 7200.0, 50.0, 1000.0, 1050.0, 900.0]
    assert launch.settings.review_s == 60.0
    assert launch.assignment(JobKey(job_id=job.id, attempt=1), "1.1").install_s == 100.0


async def test_secrets_travel_to_the_controller_and_stay_out_of_its_words(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET_OF_MINE", "hunter2")
    job = await scene.submit(steps=20, env={"KEY": {"secret": "A_SECRET_OF_MINE"}, "PLAIN": "x"})
    await scene.until_state(job, JobState.SUCCEEDED)
    launch = scene.cluster.launches[0][2]
    assert launch.env == {"KEY": "hunter2", "PLAIN": "x"}
    assert "hunter2" not in repr(launch)


async def test_init_from_finds_the_checkpoint_in_storage(scene: Scene) -> None:
    source = await scene.submit(steps=20)
    await scene.until_state(source, JobState.SUCCEEDED)
    save_checkpoint(scene, source, step=5)
    await scene.store.reconciler.register_checkpoints(source.id, [checkpoint(5)], scene.fence)
    job = await scene.submit(name="second", steps=20, init_from={"job": source.id, "step": 5})
    await scene.until_state(job, JobState.SUCCEEDED)
    place = checkpoints_place(scene.settings.storage_url, source.id)
    assert scene.cluster.launches[-1][2].storage.init_from == f"{place}/{checkpoint(5).path}"


async def test_a_source_that_is_gone_from_storage_fails_a_new_job_with_the_remedy(scene: Scene) -> None:
    job = await submit_from_lost_source(scene)
    row = await scene.until_state(job, JobState.FAILED)
    assert row.failure is not None
    assert "is not in storage" in row.failure.message
    assert "leave `init_from` out" in row.failure.message


async def test_a_source_without_a_checkpoint_is_waited_for_while_it_lives(scene: Scene) -> None:
    source = await scene.submit(steps=20)
    job = await scene.submit(name="second", steps=20, init_from={"job": source.id})
    launching = Launching(scene.settings, scene.store.reconciler, scene.settings.home)
    with pytest.raises(UserCodeError, match=r"has no checkpoint yet; wait for its first .* then retry this job"):
        await launching.launch(job)
    await scene.until_state(source, JobState.SUCCEEDED)
    with pytest.raises(UserCodeError, match=r"writes none any more; start from another job"):
        await launching.launch(job)


async def test_a_step_that_a_source_lacks_is_told_with_those_it_has(scene: Scene) -> None:
    source = await scene.submit(steps=20)
    job = await scene.submit(name="second", steps=20, init_from={"job": source.id, "step": 7})
    await scene.store.reconciler.register_checkpoints(source.id, [checkpoint(5)], scene.fence)
    launching = Launching(scene.settings, scene.store.reconciler, scene.settings.home)
    with pytest.raises(UserCodeError, match=r"no checkpoint of step 7 \(it has: 5\); choose one of these"):
        await launching.launch(job)


async def test_a_job_with_checkpoints_of_its_own_needs_no_source(scene: Scene) -> None:
    job = await submit_from_lost_source(scene)
    save_checkpoint(scene, job, step=7)
    launching = Launching(scene.settings, scene.store.reconciler, scene.settings.home)
    assert (await launching.launch(job)).storage.init_from is None
    with pytest.raises(UserCodeError, match="not in storage"):
        await launching.launch(dataclasses.replace(job, restart_after=1))


async def test_a_succeeding_controller_needs_no_source(scene: Scene) -> None:
    job = await submit_from_lost_source(scene)
    launching = Launching(scene.settings, scene.store.reconciler, scene.settings.home)
    assert (await launching.launch(dataclasses.replace(job, term=2))).storage.init_from is None


async def test_a_controller_that_cannot_answer_fails_the_job_and_takes_its_workers_with_it(endless: Scene) -> None:
    job = await endless.submit()
    await endless.until_state(job, JobState.RUNNING)
    endless.cluster.faulty.add(f"controller/{job.id}/1/1")
    row = await endless.until_state(job, JobState.FAILED)
    assert row.reason is Reason.CONTROLLER_ERROR
    await endless.until(job, lambda row: not any(endless.cluster.workers.values()))


async def test_a_fenced_out_reconciler_stops_acting(endless: Scene) -> None:
    job = await endless.submit()
    await endless.until_state(job, JobState.RUNNING)
    await leader(endless.store)
    with pytest.raises(FencedOutError):
        await endless.until(job, lambda row: False)


async def test_orphans_go_and_what_belongs_to_jobs_stays(endless: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.reconciler.orphans.PATIENCE_S", 0.05)
    monkeypatch.setattr("service.reconciler.reaper.REAP_S", 0.02)
    job = await endless.submit()
    await endless.until_state(job, JobState.RUNNING)
    gone = await endless.submit()
    await endless.say(gone, Verb.CANCEL)
    await endless.store.jobs.delete(await endless.job(gone))
    stray = Path(endless.settings.storage_url) / JOBS / gone.id
    stray.mkdir(parents=True)
    endless.cluster.strays |= {f"worker/{gone.id}/1/1.1", f"controller/{job.id}/0/1", "somebody-elses"}
    await endless.until(job, lambda row: endless.cluster.strays == {"somebody-elses"} and not stray.exists())
    assert f"controller/{job.id}/1/1" in await endless.cluster.names()


def test_what_was_seen_once_is_not_removed() -> None:
    suspects = Suspects()
    assert suspects.ripe(["a"], 0.0) == []
    assert suspects.ripe(["a", "b"], PATIENCE_S) == ["a"]
    assert suspects.ripe([], PATIENCE_S + 1) == []
    assert suspects.ripe(["b"], 2 * PATIENCE_S) == []


def checkpoint(step: int) -> CheckpointInfo:
    return CheckpointInfo(
        path=f"0001-0001-{step:09d}-00001",
        attempt=1,
        lineage=1,
        generation=1,
        round=step,
        step=step,
        cursor=step * 32,
        size_bytes=1,
        metric=None,
        is_final=False,
        created_at=0.0,
    )


async def submit_from_lost_source(scene: Scene) -> JobRow:
    """A job that starts from a checkpoint which the store knows and storage has lost."""
    source = await scene.submit(steps=20)
    await scene.until_state(source, JobState.SUCCEEDED)
    await scene.store.reconciler.register_checkpoints(source.id, [checkpoint(5)], scene.fence)
    return await scene.submit(name="second", steps=20, init_from={"job": source.id, "step": 5})


def save_checkpoint(scene: Scene, job: JobRow, step: int) -> None:
    info = checkpoint(step)
    store_checkpoint(open_storage(checkpoints_place(scene.settings.storage_url, job.id)), info)
