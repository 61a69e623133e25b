"""The store's contract with the reconciler: the lease, admission, transitions, snapshots."""

from __future__ import annotations

import pytest

from service.records import ClusterView, Explanation, JobRow, NodeView, Transition
from service.states import JobState, Move, Verb, command
from service.store.opening import Store
from service.store.port import FencedOutError, StaleRowError, TransitionError
from tests.service.given import (
    Clock,
    checkpoint,
    leader,
    placed,
    snapshot,
    spec,
)
from workers.errors import Failure, Reason

pytestmark = pytest.mark.anyio


async def fresh(store: Store, job: JobRow) -> JobRow:
    found = await store.reconciler.job(job.id)
    assert found is not None
    return found


async def test_one_leader_at_a_time_and_the_next_one_fences_the_last_out(store: Store, clock: Clock) -> None:
    first = await store.reconciler.take_lease("a", 10)
    assert first is not None
    assert await store.reconciler.take_lease("b", 10) is None
    clock.advance(8)
    await store.reconciler.renew_lease(first, 10)
    clock.advance(8)
    assert await store.reconciler.take_lease("b", 10) is None
    clock.advance(3)
    second = await store.reconciler.take_lease("b", 10)
    assert second is not None
    assert second > first
    with pytest.raises(FencedOutError):
        await store.reconciler.renew_lease(first, 10)
    job = (await store.jobs.submit(spec())).job
    with pytest.raises(FencedOutError):
        await store.reconciler.admit(job, 1, first)
    with pytest.raises(FencedOutError):
        await store.reconciler.put_cluster(ClusterView(is_up=True), first)
    assert (await fresh(store, job)).state is JobState.QUEUED


async def test_a_released_lease_is_free_at_once(store: Store) -> None:
    fence = await leader(store)
    await store.reconciler.release_lease(fence)
    assert await store.reconciler.take_lease("b", 10) == fence + 1
    await store.reconciler.release_lease(fence)
    assert await store.reconciler.take_lease("c", 10) is None


async def test_the_installation_has_one_lasting_id(store: Store) -> None:
    assert await store.reconciler.installation_id() == await store.reconciler.installation_id()


async def test_admission_writes_attempt_and_term_before_anything_starts(store: Store) -> None:
    fence = await leader(store)
    job = (await store.jobs.submit(spec())).job
    started = await store.reconciler.admit(job, 3, fence)
    assert (started.state, started.attempt, started.term, started.num_desired) == (JobState.STARTING, 1, 1, 3)
    with pytest.raises(StaleRowError):
        await store.reconciler.admit(job, 3, fence)
    assert [e.attempt for e in await store.jobs.events(job.id, 0, 10)] == [0, 1]


async def test_a_new_term_is_counted_once_and_survives_a_users_command(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    move = command(Verb.PAUSE, job.state, job.attempt)
    assert isinstance(move, Move)
    await store.jobs.command(job, move)
    assert (await store.reconciler.new_term(job, fence)).term == 2
    with pytest.raises(StaleRowError):
        await store.reconciler.new_term(job, fence)


async def test_a_transition_that_the_table_lacks_is_refused(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    with pytest.raises(TransitionError):
        await store.reconciler.transition(job, JobState.SUCCEEDED, Transition(), fence)
    assert await fresh(store, job) == job


async def test_transitions_note_times_reasons_and_failures(store: Store, clock: Clock) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    clock.advance(5)
    running = await store.reconciler.transition(job, JobState.RUNNING, Transition(), fence)
    assert running.started_at == clock.now_s
    clock.advance(5)
    failure = Failure(reason=Reason.USER_ERROR, type="ValueError", message="no", traceback="x" * 9000 + "end")
    told = Transition(reason=Reason.USER_ERROR, failure=failure, explanation=Explanation(summary="It failed."))
    failed = await store.reconciler.transition(running, JobState.FAILED, told, fence)
    assert (failed.finished_at, failed.reason, failed.num_desired) == (clock.now_s, Reason.USER_ERROR, 0)
    assert failed.explanation == Explanation(summary="It failed.")
    assert failed.failure is not None
    assert failed.failure.traceback.endswith("end")
    assert len(failed.failure.traceback) == 4000
    events = await store.jobs.events(job.id, 0, 10)
    assert [(e.source, e.to) for e in events][1:] == [
        (JobState.QUEUED, JobState.STARTING),
        (JobState.STARTING, JobState.RUNNING),
        (JobState.RUNNING, JobState.FAILED),
    ]


async def test_live_jobs_come_first_in_first_out_and_rest_ones_are_left_out(store: Store, clock: Clock) -> None:
    fence = await leader(store)
    first, second, third = [(await store.jobs.submit(spec())).job for _ in range(3)]
    clock.advance(10)
    started = await store.reconciler.admit(first, 1, fence)
    await store.reconciler.transition(started, JobState.QUEUED, Transition(reason=Reason.NO_CAPACITY), fence)
    paused = command(Verb.PAUSE, second.state, 0)
    assert isinstance(paused, Move)
    await store.jobs.command(second, paused)
    assert [job.id for job in await store.reconciler.live_jobs()] == [third.id, first.id]
    fourth = await placed(store, fence)
    assert [job.id for job in await store.reconciler.live_jobs(max_queued=1)] == [third.id, fourth.id]
    assert await store.reconciler.job_ids() == {first.id, second.id, third.id, fourth.id}


async def test_registered_checkpoints_are_what_storage_holds(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    await store.reconciler.fold(snapshot(job, checkpoints=(checkpoint(10), checkpoint(20))), fence)
    await store.reconciler.register_checkpoints(job.id, [checkpoint(30, final=True), checkpoint(20)], fence)
    assert await store.reconciler.checkpoints(job.id) == [checkpoint(20), checkpoint(30, final=True)]
    await store.reconciler.register_checkpoints("job_gone", [checkpoint(1)], fence)


async def test_wishes_that_change_nothing_are_not_written(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    change = await store.telemetry.change()
    await store.reconciler.set_desired(job, job.num_desired, fence)
    await store.reconciler.set_explanations([(job, job.explanation)], fence)
    assert await store.telemetry.change() == change
    await store.reconciler.set_desired(job, 4, fence)
    await store.reconciler.set_explanations([(job, Explanation(summary="waits", details=("a",)))], fence)
    now = await fresh(store, job)
    assert (now.num_desired, now.explanation) == (4, Explanation(summary="waits", details=("a",)))
    assert now.version == job.version


async def test_of_jobs_that_wait_those_that_have_moved_meanwhile_are_told_nothing(store: Store) -> None:
    fence = await leader(store)
    first, second = [(await store.jobs.submit(spec())).job for _ in range(2)]
    await store.reconciler.admit(first, 1, fence)
    why = Explanation(summary="too large")
    await store.reconciler.set_explanations([(first, why), (second, why)], fence)
    assert [(await fresh(store, job)).explanation for job in (first, second)] == [None, why]


async def test_the_cluster_is_kept_as_it_was_seen(store: Store, clock: Clock) -> None:
    fence = await leader(store)
    assert await store.telemetry.cluster() is None
    node = NodeView(node_id="n1", name="host", is_alive=True, total={"cpus": 2}, free={"cpus": 1.5})
    seen = ClusterView(is_up=True, address="127.0.0.1:1", ray_version="2.60.0", nodes=(node,))
    await store.reconciler.put_cluster(seen, fence)
    stored = await store.telemetry.cluster()
    assert stored is not None
    assert (stored.view, stored.observed_at) == (seen, clock.now_s)
