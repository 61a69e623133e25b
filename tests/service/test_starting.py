"""What becomes of a job that is STARTING: when the service stops, and when it trains and ends between two looks."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from service.records import JobRow
from service.states import JobState, Verb
from service.store.port import FencedOutError
from tests.service.given import leader
from tests.service.scene import Scene, last_key
from workers.assignment import JobKey
from workers.control.launch import Launch
from workers.control.names import controller_name
from workers.errors import Reason
from workers.plan import TimelineKind

pytestmark = pytest.mark.anyio


async def starting(scene: Scene) -> JobRow:
    """A job whose workers wait for a place, and which the service has heard of."""
    job = await scene.submit(workers=1)
    await scene.store.reconciler.admit(job, 1, scene.fence)
    scene.cluster.machines = ()
    return await scene.until(job, lambda row: row.is_heard_of)


async def ends(scene: Scene, job: JobRow) -> list[tuple[int, str]]:
    entries = await scene.store.telemetry.timeline(job.id, 0, 100)
    return [(e.attempt, e.after["outcome"]) for e in entries if e.kind == TimelineKind.END]


async def test_a_job_that_was_starting_when_the_service_stopped_is_queued_and_goes_on(endless: Scene) -> None:
    job = await starting(endless)
    endless.reconciler.is_leaving = True
    row = await endless.until_state(job, JobState.QUEUED)
    assert row.reason is Reason.PREEMPTED
    assert await ends(endless, job) == [(1, "requeued")]
    endless.cluster.machines = ("n",)
    await endless.restart()
    await endless.until_state(job, JobState.RUNNING)
    assert await endless.passed(job) == ["QUEUED", "STARTING", "QUEUED", "STARTING", "RUNNING"]


async def told_to_end(scene: Scene) -> JobRow:
    """A job whose last timeline row is stored, as the service stops, and its outcome not yet."""
    job = await starting(scene)
    scene.reconciler.is_leaving = scene.cluster.keeps_outcomes = True
    while not await ends(scene, job):
        await scene.reconciler.tick()
        await scene.reconciler.settle(5)
        await asyncio.sleep(0)
    row = await scene.job(job)
    assert row.state is JobState.STARTING
    scene.cluster.keeps_outcomes = False
    return row


async def test_an_attempt_that_goes_on_after_its_end_was_told_tells_its_true_end_too(endless: Scene) -> None:
    job = await told_to_end(endless)
    await endless.cluster.lose_controller(controller_name(last_key(endless), job.term))
    endless.reconciler.is_leaving = False
    endless.cluster.machines = ("n",)
    await endless.until_state(job, JobState.RUNNING)
    await endless.say(job, Verb.CANCEL)
    await endless.until_state(job, JobState.CANCELLED)
    assert await ends(endless, job) == [(1, "requeued"), (1, "cancelled")]


async def test_a_cluster_lost_while_a_job_stops_in_its_start_leaves_no_word_that_is_not_true(endless: Scene) -> None:
    """The service's time to stop ran out between the last timeline row and the outcome."""
    job = await told_to_end(endless)
    await endless.cluster.lose_everything()
    endless.cluster.machines = ("n",)
    await endless.restart()
    await endless.until_state(job, JobState.RUNNING)
    events = await endless.store.jobs.events(job.id, 0, 100)
    assert [(e.to, e.attempt, e.reason) for e in events[1:]] == [
        (JobState.STARTING, 1, None),
        (JobState.QUEUED, 1, Reason.CLUSTER_LOST),
        (JobState.STARTING, 2, None),
        (JobState.RUNNING, 2, None),
    ]
    await endless.say(job, Verb.CANCEL)
    await endless.until_state(job, JobState.CANCELLED)
    assert await ends(endless, job) == [(1, "requeued"), (2, "cancelled")]


@pytest.mark.parametrize("fails_at", [2, 15])
async def test_a_job_that_trains_and_fails_between_two_looks_was_running(endless: Scene, fails_at: int) -> None:
    endless.cluster.fails_at = fails_at
    job = await endless.submit(workers=1)
    row = await endless.until_state(job, JobState.FAILED)
    assert row.reason is Reason.DIVERGED
    assert row.started_at is not None
    assert await endless.passed(job) == ["QUEUED", "STARTING", "RUNNING", "FAILED"]
    assert (await endless.store.reconciler.acknowledged(job.id, 1)).rounds == (1, fails_at - 1)


async def test_what_a_leader_starts_after_it_was_succeeded_trains_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor found no controller and moved the job on: nobody would store what such a one told."""
    is_called, goes_on, start = asyncio.Event(), asyncio.Event(), scene.cluster.start_controller

    async def late(key: JobKey, term: int, launch: Launch) -> None:
        is_called.set()
        await goes_on.wait()
        await start(key, term, launch)

    job = await scene.submit(workers=1, steps=20)
    with monkeypatch.context() as patched:
        patched.setattr(scene.cluster, "start_controller", late)
        await scene.reconciler.tick()
        await is_called.wait()
    await scene.say(job, Verb.PAUSE)
    await scene.store.reconciler.release_lease(scene.fence)
    successor = dataclasses.replace(scene, fence=await leader(scene.store, "successor"))
    await successor.reconciler.begin()
    assert (await scene.job(job)).state is JobState.PAUSED
    goes_on.set()
    await scene.reconciler.settle(5)
    with pytest.raises(FencedOutError):
        await scene.reconciler.tick()
    assert await scene.cluster.names() == [controller_name(JobKey(job_id=job.id, attempt=1), 1)], "it asked for workers"


async def test_who_was_succeeded_says_nothing_to_a_controller_that_the_successor_started(endless: Scene) -> None:
    """It would be told what this leader knew to be stored, and number its rounds after that."""
    job = await endless.submit(workers=1)
    await endless.until_state(job, JobState.RUNNING)
    await endless.look()
    successor = await leader(endless.store)
    row = await endless.store.reconciler.new_term(await endless.job(job), successor)
    await endless.cluster.start_controller(last_key(endless), row.term, endless.cluster.launches[-1][2])
    pursuit = endless.reconciler._pursuits[job.id]
    with pytest.raises(FencedOutError):
        await pursuit.step(row, is_leaving=False, avoid=())
    assert row.term not in endless.cluster.seen_terms
