"""The clock of the machine jumps by a day, forth or back, while a job runs and when the leader changes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from service.records import Transition
from service.replica import Claim
from service.settings import Settings
from service.states import JobState
from service.store.opening import Store, open_store
from service.store.port import FencedOutError
from tests.fakes import FakeCluster
from tests.faults.evidence import gather
from tests.faults.findings import assert_nothing_found
from tests.faults.oracle import Case, judge
from tests.service.given import Clock, leader, placed
from tests.service.scene import Scene

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

DAY_S = 86_400.0


@pytest.fixture
async def scene(store: Store, settings: Settings) -> AsyncIterator[Scene]:
    await Claim(store.reconciler, settings.storage_url).take()
    made = Scene(store, settings, await leader(store), FakeCluster(total=400))
    yield made
    await made.reconciler.settle(5)
    await made.cluster.lose_everything()


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
async def test_a_job_goes_on_over_a_jump_and_nobody_is_billed_for_it(
    scene: Scene, clock: Clock, settings: Settings, jump_s: float
) -> None:
    job = await scene.submit(steps=400)
    began_s = time.monotonic()
    await scene.until(job, lambda row: row.samples > 0)
    clock.advance(jump_s)
    row = await scene.until_state(job, JobState.SUCCEEDED)
    assert (row.attempt, row.term) == (1, 1)
    # However long this machine takes: its four workers were held meanwhile at most.
    assert 0 < row.worker_s <= 4 * (time.monotonic() - began_s)
    assert_nothing_found(judge(Case(evidence=gather(settings))))


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
async def test_a_job_goes_on_over_a_jump_and_over_a_new_leader_after_it(
    scene: Scene, clock: Clock, settings: Settings, jump_s: float
) -> None:
    job = await scene.submit(steps=400)
    await scene.until(job, lambda row: row.samples > 0)
    clock.advance(jump_s)
    await scene.reconciler.settle(5)
    scene.store = open_store(settings.database_url, clock)  # another process, which has seen no time pass
    scene.fence = await leader(scene.store)
    await scene.restart()
    row = await scene.until_state(job, JobState.SUCCEEDED)
    assert (row.attempt, row.term) == (1, 1)
    assert 0 <= row.worker_s < 3600
    other = await scene.submit(steps=400)
    await scene.until_state(other, JobState.SUCCEEDED)
    evidence = gather(settings)
    assert_nothing_found(judge(Case(evidence=evidence)))
    assert [point.step for point in evidence.jobs[job.id].points] == list(range(1, 401))
    await scene.store.close()


async def test_a_lease_that_a_jump_ends_is_fenced_off_and_one_that_it_prolongs_is_taken_after_its_length(
    store: Store, clock: Clock, settings: Settings
) -> None:
    lease, steady = store.reconciler, Clock()
    standby = open_store(settings.database_url, clock, steady)
    first = await lease.take_lease("a", 15.0)
    assert first is not None
    job = await placed(store, first)
    clock.advance(DAY_S)
    second = await lease.take_lease("b", 15.0)
    assert second is not None
    with pytest.raises(FencedOutError):
        await lease.renew_lease(first, 15.0)
    with pytest.raises(FencedOutError):
        await lease.transition(job, JobState.RUNNING, Transition(), first)
    job = await lease.transition(job, JobState.RUNNING, Transition(), second)
    clock.advance(-2 * DAY_S)
    assert await standby.reconciler.take_lease("a", 15.0) is None
    third = await lease.take_lease("b", 15.0)
    assert third is not None, "its own holder waits for nothing"
    with pytest.raises(FencedOutError):
        await lease.renew_lease(second, 15.0)
    clock.advance(-DAY_S)
    assert await standby.reconciler.take_lease("a", 15.0) is None
    steady.advance(15.0)
    fourth = await standby.reconciler.take_lease("a", 15.0)
    assert fourth is not None, "b has not renewed for as long as its lease was"
    with pytest.raises(FencedOutError):
        await lease.transition(job, JobState.SUCCEEDED, Transition(), third)
    await lease.transition(job, JobState.SUCCEEDED, Transition(), fourth)
    await lease.release_lease(fourth)
    assert await lease.take_lease("b", 15.0) is not None, "an orderly end leaves nothing to wait for"
    assert_nothing_found(judge(Case(evidence=gather(settings))))
    await standby.close()
