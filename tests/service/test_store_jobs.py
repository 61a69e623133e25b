"""The store's contract for jobs: submissions, lists, commands, deletion."""

from __future__ import annotations

import asyncio

import pytest

from service.records import JobFilter, JobRow, Scale, Transition
from service.states import JobState, Move, Verb, command
from service.store.bundles import BUNDLE_GRACE_S
from service.store.keys import KEY_LIFETIME_S, IdempotencyKey, KeyReusedError, KeySpentError
from service.store.opening import Store, open_store
from service.store.port import StaleRowError
from service.store.references import UnknownBundleError, UnknownCheckpointError, UnknownJobError
from tests.service.given import Clock, checkpoint, leader, placed, spec, stored_bundle
from workers.status import RunGoal

pytestmark = pytest.mark.anyio


def key(name: str = "k1", body: str = "b1") -> IdempotencyKey:
    return IdempotencyKey(principal="admin", scope="POST /jobs", key=name, body_sha256=body)


async def cancel(store: Store, job: JobRow) -> JobRow:
    move = command(Verb.CANCEL, job.state, job.attempt)
    assert isinstance(move, Move)
    return await store.jobs.command(job, move)


async def test_a_submitted_job_is_queued_and_reads_back_as_it_was_given(store: Store) -> None:
    submitted = await store.jobs.submit(spec(labels={"team": "cv"}, config={"hidden": 8}))
    job = await store.jobs.job(submitted.job.id)
    assert job == submitted.job
    assert (job.state, job.attempt, job.goal, job.version) == (JobState.QUEUED, 0, RunGoal.RUN, 1)
    assert job.spec == spec(labels={"team": "cv"}, config={"hidden": 8})
    events = await store.jobs.events(job.id, 0, 10)
    assert [(e.seq, e.source, e.to) for e in events] == [(1, None, JobState.QUEUED)]


async def test_ids_sort_in_the_order_of_submission_within_one_instant(store: Store) -> None:
    ids = [(await store.jobs.submit(spec())).job.id for _ in range(20)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 20


async def test_the_same_key_and_body_find_the_first_job(store: Store) -> None:
    first = await store.jobs.submit(spec(), key())
    again = await store.jobs.submit(spec(), key())
    assert (first.is_new, again.is_new) == (True, False)
    assert again.job.id == first.job.id
    assert len((await store.jobs.page(JobFilter(), 10)).rows) == 1


async def test_the_same_key_with_another_body_is_refused(store: Store) -> None:
    await store.jobs.submit(spec(), key())
    with pytest.raises(KeyReusedError):
        await store.jobs.submit(spec(name="other"), key(body="b2"))
    assert len((await store.jobs.page(JobFilter(), 10)).rows) == 1


async def test_simultaneous_submissions_with_one_key_make_one_job(
    store: Store, database_url: str, clock: Clock
) -> None:
    other = open_store(database_url, clock)  # as another process would
    try:
        results = await asyncio.gather(
            *((store if n % 2 else other).jobs.submit(spec(), key()) for n in range(12)),
        )
    finally:
        await other.close()
    assert len({result.job.id for result in results}) == 1
    assert sum(result.is_new for result in results) == 1


async def test_a_key_is_forgotten_after_a_day(store: Store, clock: Clock) -> None:
    first = await store.jobs.submit(spec(), key())
    clock.advance(KEY_LIFETIME_S + 1)
    assert (await store.jobs.submit(spec(), key())).job.id != first.job.id


async def test_the_key_of_a_deleted_job_stays_spent(store: Store) -> None:
    job = (await store.jobs.submit(spec(), key())).job
    await store.jobs.delete(await cancel(store, job))
    with pytest.raises(KeySpentError):
        await store.jobs.submit(spec(), key())


async def test_what_the_spec_names_must_be_there(store: Store) -> None:
    with pytest.raises(UnknownBundleError):
        await store.jobs.submit(spec(entrypoint="train:build", bundle="bundle_none"))
    with pytest.raises(UnknownJobError):
        await store.jobs.submit(spec(init_from={"job": "job_none"}))
    assert (await store.jobs.page(JobFilter(), 10)).rows == []


async def test_a_step_to_start_from_is_refused_once_its_job_cannot_write_it_any_more(store: Store) -> None:
    fence = await leader(store)
    source = (await store.jobs.submit(spec())).job
    wish = {"job": source.id, "step": 30}
    await store.jobs.submit(spec(init_from=wish))
    source = await cancel(store, source)
    with pytest.raises(UnknownCheckpointError, match="without a checkpoint") as bare:
        await store.jobs.submit(spec(init_from={"job": source.id}))
    assert bare.value.problem.pointer == "/init_from/job"
    await store.reconciler.register_checkpoints(source.id, [checkpoint(20), checkpoint(10)], fence)
    with pytest.raises(UnknownCheckpointError, match="no checkpoint of step 30; it has: 10, 20;") as other:
        await store.jobs.check_references(spec(init_from=wish))
    assert other.value.problem.pointer == "/init_from/step"
    for step in (20, "latest"):
        await store.jobs.submit(spec(init_from={"job": source.id, "step": step}))


async def test_a_list_is_newest_first_and_goes_on_after_an_id(store: Store) -> None:
    ids = [(await store.jobs.submit(spec())).job.id for _ in range(5)]
    first = (await store.jobs.page(JobFilter(), 2)).rows
    rest = (await store.jobs.page(JobFilter(), 10, first[-1].id)).rows
    assert [job.id for job in first + rest] == ids[::-1]


async def test_filters_narrow_a_list(store: Store) -> None:
    one = (await store.jobs.submit(spec(name="one", labels={"team": "cv", "kind": "a"}))).job
    two = (await store.jobs.submit(spec(name="two_percent".replace("_", "-"), labels={"team": "cv"}))).job
    await cancel(store, two)

    async def ids(**wanted: object) -> list[str]:
        return [job.id for job in (await store.jobs.page(JobFilter(**wanted), 10)).rows]  # type: ignore[arg-type]  # a test's shorthand

    assert await ids(states=frozenset({JobState.CANCELLED})) == [two.id]
    assert await ids(labels={"team": "cv"}) == [two.id, one.id]
    assert await ids(labels={"team": "cv", "kind": "a"}) == [one.id]
    assert await ids(labels={"team": "nlp"}) == []
    assert await ids(name="one") == [one.id]
    assert await ids(search="perc") == [two.id]
    assert await ids(search=one.id[:-2]) == [one.id]
    assert await ids(search="%") == []
    counts = await store.jobs.count_by_state()
    assert (counts[JobState.QUEUED], counts[JobState.CANCELLED], counts[JobState.RUNNING]) == (1, 1, 0)


async def test_of_two_changes_decided_on_one_row_only_the_first_takes_effect(store: Store) -> None:
    job = (await store.jobs.submit(spec())).job
    await cancel(store, job)
    with pytest.raises(StaleRowError):
        await store.jobs.set_scale(job, Scale(min=1, max=2))
    with pytest.raises(StaleRowError):
        await cancel(store, job)
    found = await store.jobs.job(job.id)
    assert found is not None
    assert found.state is JobState.CANCELLED
    assert found.scale == job.scale
    assert [e.to for e in await store.jobs.events(job.id, 0, 10)] == [JobState.QUEUED, JobState.CANCELLED]


async def test_the_guard_is_the_version_and_not_only_the_state(store: Store) -> None:
    job = (await store.jobs.submit(spec())).job
    await store.jobs.set_scale(job, Scale(min=1, max=2))
    with pytest.raises(StaleRowError):
        await store.jobs.set_scale(job, Scale(min=1, max=3))
    with pytest.raises(StaleRowError):
        await cancel(store, job)


async def test_a_retry_from_the_start_forgets_progress_and_earlier_checkpoints(store: Store) -> None:
    fence = await leader(store)
    job = await cancel(store, await placed(store, fence))
    job = await store.reconciler.transition(job, JobState.CANCELLED, Transition(), fence)
    move = command(Verb.RETRY, job.state, job.attempt)
    assert isinstance(move, Move)
    again = await store.jobs.command(job, move, is_fresh_start=True)
    assert (again.state, again.restart_after, again.samples, again.finished_at) == (JobState.QUEUED, 1, 0, None)
    assert (again.reason, again.goal) == (None, RunGoal.RUN)


async def test_deleting_a_job_takes_its_rows_and_frees_its_bundle(store: Store, clock: Clock) -> None:
    bundle = await stored_bundle(store, "ab" * 32)
    wanted = spec(entrypoint="train:build", bundle=bundle.id, labels={"a": "b"})
    first, second = [(await store.jobs.submit(wanted)).job for _ in range(2)]
    clock.advance(BUNDLE_GRACE_S + 1)
    assert (await store.jobs.delete(await cancel(store, first))).bundle_key is None
    assert await store.bundles.bundle(bundle.id) is not None
    assert (await store.jobs.delete(await cancel(store, second))).bundle_key == "bundles/a.zip"
    assert await store.bundles.bundle(bundle.id) is None
    assert await store.jobs.events(first.id, 0, 10) == []
    assert (await store.jobs.page(JobFilter(labels={"a": "b"}), 10)).rows == []


async def test_a_bundle_that_was_just_uploaded_outlives_its_last_job(store: Store) -> None:
    bundle = await stored_bundle(store, "cd" * 32)
    job = (await store.jobs.submit(spec(entrypoint="train:build", bundle=bundle.id))).job
    assert (await store.jobs.delete(await cancel(store, job))).bundle_key is None
    assert await store.bundles.bundle(bundle.id) is not None


async def test_those_before_a_job_in_line_are_found(store: Store, clock: Clock) -> None:
    waiting = []
    for _ in range(3):
        waiting.append((await store.jobs.submit(spec())).job)
        clock.advance(1)
    first, number = await store.jobs.queue_before(waiting[2], 1)
    assert ([job.id for job in first], number) == ([waiting[0].id], 2)
