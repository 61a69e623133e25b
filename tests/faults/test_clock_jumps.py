"""The clock of the machine jumps by a day, forth or back, while a job runs and when the leader changes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from service.settings import Settings
from service.states import JobState
from service.store.opening import Store
from service.store.port import FencedOutError
from tests.fakes import FakeCluster
from tests.faults.evidence import gather
from tests.faults.findings import assert_nothing_found
from tests.faults.oracle import Case, judge
from tests.service.given import Clock, leader
from tests.service.scene import Scene

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

DAY_S = 86_400.0


@pytest.fixture
async def scene(store: Store, settings: Settings) -> AsyncIterator[Scene]:
    made = Scene(store, settings, await leader(store), FakeCluster(total=400))
    yield made
    await made.reconciler.settle(5)
    await made.cluster.lose_everything()


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
async def test_a_job_goes_on_over_a_jump_and_over_a_new_leader_after_it(
    scene: Scene, store: Store, clock: Clock, settings: Settings, jump_s: float
) -> None:
    job = await scene.submit(steps=400)
    await scene.until_state(job, JobState.RUNNING)
    clock.advance(jump_s)
    scene.fence = await leader(store)
    await scene.restart()
    row = await scene.until_state(job, JobState.SUCCEEDED)
    assert (row.attempt, row.term) == (1, 1)
    assert row.worker_s >= 0
    other = await scene.submit(steps=400)
    await scene.until_state(other, JobState.SUCCEEDED)
    evidence = gather(settings)
    assert_nothing_found(judge(Case(evidence=evidence)))
    assert [point.step for point in evidence.jobs[job.id].points] == list(range(1, 401))


async def test_a_lease_that_a_jump_ends_is_fenced_off_and_one_that_it_prolongs_is_taken_by_its_own_holder(
    store: Store, clock: Clock
) -> None:
    lease = store.reconciler
    first = await lease.take_lease("a", 15.0)
    assert first is not None
    clock.advance(DAY_S)
    second = await lease.take_lease("b", 15.0)
    assert second is not None
    with pytest.raises(FencedOutError):
        await lease.renew_lease(first, 15.0)
    clock.advance(-2 * DAY_S)
    assert await lease.take_lease("a", 15.0) is None
    third = await lease.take_lease("b", 15.0)
    assert third is not None
    with pytest.raises(FencedOutError):
        await lease.renew_lease(second, 15.0)
    await lease.release_lease(third)
    assert await lease.take_lease("a", 15.0) is not None, "an orderly end leaves nothing to wait for"
