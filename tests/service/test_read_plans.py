"""What streams, logs and every tick ask goes along an index and sorts nothing, however much is stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Select, Table, insert, select

from service.states import JobState
from service.store.opening import Store
from service.store.schema import jobs, sweeps, timeline
from service.store.survey import survey_of
from service.store.telemetry import Following
from service.store.totals import read_totals
from service.sweep_records import SweepState
from tests.service.given import Clock, leader, log, placed, record, row, snapshot, spec
from tests.service.query_plans import bad_steps, noted_statements, num_steps
from tests.service.swept import Swept, point
from tests.service.test_long_queue import add_queued

pytestmark = pytest.mark.anyio

Read = Callable[[Store, str], Awaitable[Any]]
IN_ONE_CHANGE = "USE TEMP B-TREE FOR RIGHT PART OF ORDER BY"
"""Only what was written together is sorted, which has a bound."""

READS: dict[str, Read] = {
    "where a batch of a stream ends": lambda store, job: store.telemetry.batch_end(
        Following(metrics=(job,), logs=(job,), timelines=(job,), has_all_jobs=True), 0, 10**6
    ),
    "jobs that changed": lambda store, _: store.telemetry.jobs_changed(0, 10**6),
    "points that changed": lambda store, job: store.telemetry.points_changed(job, 0, 10**6),
    "timeline that changed": lambda store, job: store.telemetry.timeline_changed(job, 0, 10**6),
    "logs that changed": lambda store, job: store.telemetry.logs_changed(job, 0, 10**6),
    "a log": lambda store, job: store.telemetry.logs(job, None, 3, 10**6),
    "a log of a rank": lambda store, job: store.telemetry.logs(job, 0, 3, 10**6),
    "the end of a log": lambda store, job: store.telemetry.log_tail(job, None, 10, 10**6),
    "the end of a log of a rank": lambda store, job: store.telemetry.log_tail(job, 0, 10, 10**6),
    "how long a log is": lambda store, job: store.telemetry.log_size(job),
    "where a log begins": lambda store, job: store.telemetry.log_begin(job),
    "sums over all jobs": lambda store, _: read_totals(store.database),
    "what a controller has told": lambda store, job: store.reconciler.acknowledged(job, 1),
}


@pytest.mark.parametrize("read", READS)
async def test_it_goes_along_an_index_and_sorts_nothing(store: Store, read: str) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    await store.jobs.submit(spec())
    told = snapshot(job, [record(1), record(2)], logs=(log(b"hello\n"),), timeline=(row("a"),))
    await store.reconciler.fold(told, fence)
    engine = await store.database.read(lambda conn: conn.engine)
    with noted_statements(engine) as statements:
        await READS[read](store, job.id)
    assert [text for text, _ in statements if text.startswith("SELECT")]
    found = await store.database.read(lambda conn: bad_steps(conn, statements))
    assert [step for step in found if step != IN_ONE_CHANGE] == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_tick_begins_with_no_more_steps_when_more_has_ended_and_more_waits(store: Store, clock: Clock) -> None:
    fence = await leader(store)
    await placed(store, fence)
    await (await Swept.created(store, clock, fence)).begin(point(0.01))
    await store.jobs.submit(spec())

    def grown(conn: Connection) -> tuple[int, int]:
        add_queued(conn, 200)
        few = num_steps(conn, lambda: survey_of(conn, 100))
        add_queued(conn, 3000)
        add_ended(conn, jobs, JobState.SUCCEEDED, 3000)
        add_ended(conn, sweeps, SweepState.SUCCEEDED, 1000)
        return few, num_steps(conn, lambda: survey_of(conn, 100))

    few, many = await store.database.write_quietly(grown)
    assert many < 1.2 * few


def add_ended(conn: Connection, table: Table, state: str, number: int) -> None:
    """Copies of some row in this state."""
    given = conn.execute(select(table).limit(1)).mappings().one()
    conn.execute(insert(table), [{**given, "id": f"ended_{n}", "state": state} for n in range(number)])


@pytest.mark.parametrize(
    "statement", [select(timeline.c.seq).where(timeline.c.cost_s > 1.0), select(timeline).order_by(timeline.c.cost_s)]
)
async def test_what_no_index_serves_is_told(store: Store, statement: Select[Any]) -> None:
    def steps(conn: Connection) -> list[str]:
        with noted_statements(conn.engine) as statements:
            conn.execute(statement).all()
        return bad_steps(conn, statements)

    assert await store.database.read(steps)
