"""Deleting a long job: no statement takes more than a bounded number of rows, and a command meanwhile stops it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, select

from service.records import JobFilter, JobRow, Transition
from service.states import JobState, Verb, command
from service.store import deleting
from service.store.opening import Store
from service.store.port import StaleRowError
from service.store.schema import points
from service.store.totals import read_totals
from tests.service.given import Clock, leader, placed, record, snapshot

pytestmark = pytest.mark.anyio

A_PART, NUM_POINTS = 10, 37


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleting, "ROWS_A_PART", A_PART)


async def ended_job(store: Store) -> JobRow:
    """A job that is over, with more points than a part."""
    fence = await leader(store)
    job = await placed(store, fence, labels={"team": "x"})
    await store.reconciler.fold(snapshot(job, [record(n) for n in range(1, NUM_POINTS + 1)]), fence)
    (job,) = await store.reconciler.live_jobs()
    return await store.reconciler.transition(job, JobState.FAILED, Transition(), fence)


async def num_points(store: Store) -> int:
    count = select(func.count()).select_from(points)
    return int(await store.database.read(lambda conn: conn.execute(count).scalar_one()))


async def num_failed(store: Store) -> tuple[int, int]:
    """How many FAILED jobs the pages count, and how many Prometheus is told of."""
    counts, totals = await store.jobs.count_by_state(), await read_totals(store.database)
    return counts[JobState.FAILED], totals.jobs.get(JobState.FAILED, 0)


@contextmanager
def noted_deletions(engine: Engine) -> Iterator[list[tuple[str, int]]]:
    """From what, and how many rows, each statement deletes."""
    found: list[tuple[str, int]] = []

    def note(_conn: Any, cursor: Any, statement: str, *_: object) -> None:
        if statement.startswith("DELETE FROM "):
            found.append((statement.split()[2], cursor.rowcount))

    event.listen(engine, "after_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(engine, "after_cursor_execute", note)


async def test_the_rows_of_a_long_job_go_in_parts_and_the_job_last(store: Store) -> None:
    job = await ended_job(store)
    engine = await store.database.write_quietly(lambda conn: conn.engine)
    with noted_deletions(engine) as deleted:
        await store.jobs.delete(job)
    # The few that are left go with their job, whose statement tells no number on SQLite.
    assert deleted[:-1] == [("points", A_PART)] * (NUM_POINTS // A_PART)
    assert deleted[-1][0] == "jobs"
    assert await store.jobs.job(job.id) is None
    assert await num_points(store) == 0


async def test_a_job_that_was_changed_keeps_everything(store: Store) -> None:
    job = await ended_job(store)
    with pytest.raises(StaleRowError):
        await store.jobs.delete(replace(job, version=job.version - 1))
    assert await num_points(store) == NUM_POINTS
    assert await store.jobs.job(job.id) == job


async def test_a_job_whose_deletion_is_cut_off_is_found_by_nobody_and_removed_by_the_leader(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await ended_job(store)
    delete_part, parts = deleting._delete_part, []

    def part(*args: Any, **kwargs: Any) -> None:
        parts.append(args)
        if len(parts) == 2:
            raise KeyboardInterrupt  # as where the process dies
        delete_part(*args, **kwargs)

    filters = (JobFilter(), JobFilter(states=frozenset({JobState.FAILED})), JobFilter(labels={"team": "x"}))
    assert [len((await store.jobs.page(wanted, 10)).rows) for wanted in filters] == [1, 1, 1]
    assert await num_failed(store) == (1, 1)
    monkeypatch.setattr(deleting, "_delete_part", part)
    with pytest.raises(KeyboardInterrupt):
        await store.jobs.delete(job)
    assert await num_points(store) == NUM_POINTS - A_PART
    assert await store.jobs.job(job.id) is None
    assert [(await store.jobs.page(wanted, 10)).rows for wanted in filters] == [[], [], []]
    assert await num_failed(store) == (0, 0)
    assert await store.telemetry.jobs_changed(0, await store.database.change()) == []
    again = replace(job, version=job.version + 1)  # as one that was read by another way
    retry = command(Verb.RETRY, again.state, again.attempt)
    assert retry is not None
    with pytest.raises(StaleRowError):
        await store.jobs.command(again, retry)
    await store.reconciler.finish_deletions()
    assert await num_points(store) == 0
    assert await store.reconciler.job_ids() == frozenset()


async def test_a_deletion_is_remembered_until_nothing_is_left_of_the_job_and_a_while_has_passed(
    store: Store, clock: Clock
) -> None:
    job = await ended_job(store)
    await store.jobs.delete(job)
    fence = await leader(store)
    await store.reconciler.forget_deletions(60.0, (), fence)
    clock.advance(61)
    others = [f"job_{number}" for number in range(1000)]  # as many as there are jobs with files
    await store.reconciler.forget_deletions(60.0, {job.id, *others}, fence)
    assert await store.reconciler.deleted_jobs() == {job.id}
    await store.reconciler.forget_deletions(60.0, set(others), fence)
    assert await store.reconciler.deleted_jobs() == frozenset()
    change = await store.database.change()
    await store.reconciler.forget_deletions(60.0, set(others), fence)
    assert await store.database.change() == change, "every stream would look for nothing"
