"""The clock of the machine jumps by a day, forth or back, while a job runs and when the leader changes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from service.avoidance import MAX_LOSSES, WINDOW_S
from service.records import Duty, NodeMark, Transition
from service.replica import Claim
from service.settings import Settings
from service.states import JobState
from service.store.opening import Store, open_store
from service.store.port import FencedOutError
from service.sweep_records import SweepState
from tests.fakes import FakeCluster
from tests.faults.evidence import gather
from tests.faults.findings import assert_nothing_found
from tests.faults.oracle import Case, judge
from tests.service.given import Clock, leader, placed, snapshot
from tests.service.scene import Scene
from tests.service.test_nodes import lost
from tests.service.test_searching import has_ended, submit, until

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

DAY_S = 86_400.0


@pytest.fixture
async def scene(store: Store, settings: Settings, clock: Clock) -> AsyncIterator[Scene]:
    await Claim(store.reconciler, settings.storage_url).take()
    made = Scene(store, settings, await leader(store), FakeCluster(total=400), clock=clock)
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


@dataclass
class Node:
    """A node of two, on which jobs lose workers; ``steady`` is what the leader's own clock says."""

    scene: Scene
    clock: Clock
    steady: Clock

    async def pass_time(self, seconds: float, jump_s: float = 0.0) -> None:
        """The leader looks after it, as it does every few seconds."""
        self.steady.advance(seconds)
        self.clock.advance(seconds + jump_s)
        await self.scene.reconciler.tick()

    async def lose_often(self, times: int) -> None:
        """So many jobs lose their worker there; the leader looks after each."""
        store, fence = self.scene.store.reconciler, self.scene.fence
        for _ in range(times):
            await self.pass_time(10.0)
            job = await placed(self.scene.store, fence)
            await store.fold(snapshot(job, timeline=[lost(self.clock.now_s, "a")]), fence)
            await store.transition(job, JobState.FAILED, Transition(), fence)
            await self.scene.reconciler.tick()

    async def duty(self) -> Duty:
        mark = (await self.scene.store.nodes.node_marks()).get("a")
        return Duty.ACTIVE if mark is None else mark.duty

    async def release(self) -> None:
        """A user says that it may be used again."""
        word = NodeMark(node_id="a", duty=Duty.ACTIVE, actor="admin", reason="", since=self.clock.now_s)
        await self.scene.store.nodes.mark_node(word, "Node a may be used again.")
        await self.scene.reconciler.tick()


@pytest.fixture
async def node(scene: Scene, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr("service.reconciler.reconciler.VIEW_S", 0.0)
    steady = Clock()
    scene.cluster.machines, scene.monotonic_s = ("a", "b"), steady
    await scene.restart()
    await scene.reconciler.tick()
    return Node(scene, clock, steady)


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
async def test_a_jump_neither_keeps_a_bad_node_in_use_nor_takes_a_good_one_out(node: Node, jump_s: float) -> None:
    await node.lose_often(MAX_LOSSES - 1)
    await node.pass_time(10.0, jump_s)
    await node.lose_often(1)
    assert await node.duty() is Duty.QUARANTINED, "what was before the jump counts"
    await node.release()
    await node.pass_time(10.0, jump_s)
    await node.lose_often(MAX_LOSSES - 1)
    assert await node.duty() is Duty.ACTIVE, "what was before the user's word is past"
    await node.lose_often(1)
    assert await node.duty() is Duty.QUARANTINED, "what was after it is not"
    await node.release()
    await node.lose_often(MAX_LOSSES - 1)
    await node.pass_time(WINDOW_S, jump_s)
    await node.lose_often(1)
    assert await node.duty() is Duty.ACTIVE, "the others are long ago"
    await node.pass_time(DAY_S, -3 * jump_s)
    await node.lose_often(1)
    assert await node.duty() is Duty.ACTIVE, "all others are, on whatever day the clock says they were"
    await node.lose_often(MAX_LOSSES - 1)
    assert await node.duty() is Duty.QUARANTINED


async def test_a_jump_does_not_end_a_sweep_by_its_limit_of_time(
    scene: Scene, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.control.pace.STEADY_S", 0.01)
    monkeypatch.setattr("workers.control.pace.TURN_S", 0.01)
    monkeypatch.setattr("workers.control.pace.BRISK_S", 0.005)
    sweep = await submit(scene, trials=2, parallel=1, limits={"time_s": DAY_S / 2})
    await until(scene, sweep, lambda view: len(view.trials) == 1)
    clock.advance(DAY_S)
    view = await until(scene, sweep, has_ended)
    assert (view.sweep.state, len(view.trials)) == (SweepState.SUCCEEDED, 2), view.sweep.reason


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
