"""A job that has done more than can be shown: its newest changes are, and the whole can be had."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from sqlalchemy import Connection, func, insert, select

from service.records import JobRow
from service.services import Services
from service.store.schema import timeline
from service.telemetry import MAX_NEWEST_CHECKPOINTS, MAX_TIMELINE_ROWS
from tests.service.given import leader, placed, row, snapshot
from tests.service.query_plans import bad_steps, noted_statements, num_rows
from workers.plan import TimelineKind

pytestmark = pytest.mark.anyio


def add_rows(conn: Connection, number: int, kind: TimelineKind) -> None:
    """Copies of the job's newest row, after it, as rows of this kind."""
    given = conn.execute(select(timeline).order_by(timeline.c.seq.desc()).limit(1)).mappings().one()
    seqs = range(given["seq"] + 1, given["seq"] + 1 + number)
    rows: list[dict[str, Any]] = [{**given, "seq": seq, "key": f"k{seq}", "kind": kind, "step": seq} for seq in seqs]
    conn.execute(insert(timeline), rows)


async def job_with_a_loss(services: Services) -> JobRow:
    """Its timeline: a resize, more checkpoints than one answer gives, a loss, and some more checkpoints."""
    fence = await leader(services.store)
    job = await placed(services.store, fence)
    await services.store.reconciler.fold(snapshot(job, timeline=(row("first", cost_s=0.1),)), fence)
    for number, kind in (
        (MAX_TIMELINE_ROWS, TimelineKind.CHECKPOINT),
        (1, TimelineKind.WORKER_LOST),
        (2 * MAX_NEWEST_CHECKPOINTS, TimelineKind.CHECKPOINT),
    ):
        await services.store.database.write_quietly(lambda conn, n=number, k=kind: add_rows(conn, n, k))
    return job


async def test_the_page_of_a_long_job_shows_its_newest_changes_and_says_how_many_there_are(
    client: httpx2.AsyncClient, services: Services
) -> None:
    job = await job_with_a_loss(services)
    for path in (f"/jobs/{job.id}", f"/jobs/{job.id}/parts/happened"):
        text = (await client.get(path)).text
        assert text.count('data-kind="worker_lost"') == text.count('data-kind="resize"') == 1
        assert text.count('data-kind="checkpoint"') == MAX_NEWEST_CHECKPOINTS
        assert "These are the newest 102 of 10,202 entries" in text


async def test_the_page_of_a_longer_job_reads_no_more(client: httpx2.AsyncClient, services: Services) -> None:
    job = await job_with_a_loss(services)
    store = services.store
    engine = await store.database.read(lambda conn: conn.engine)

    async def read() -> int:
        with noted_statements(engine) as statements:
            found = await services.telemetry.newest_timeline(job.id)
        assert found.rows[-1]["seq"] == found.num_rows
        assert await store.database.read(lambda conn: bad_steps(conn, statements)) == []
        return await store.database.read(lambda conn: num_rows(conn, statements))

    before = await read()
    await store.database.write_quietly(lambda conn: add_rows(conn, 500, TimelineKind.CHECKPOINT))
    assert await read() == before


async def test_a_timeline_is_read_to_its_end_in_answers_that_follow_each_other(
    client: httpx2.AsyncClient, services: Services
) -> None:
    job = await job_with_a_loss(services)
    seqs: list[int] = []
    while rows := (
        await client.get(f"/api/v1/jobs/{job.id}/timeline", params={"after": seqs[-1] if seqs else 0})
    ).json()["timeline"]:
        seqs += [entry["seq"] for entry in rows]
    newest = await services.store.database.read(
        lambda conn: conn.execute(select(func.max(timeline.c.seq))).scalar_one()
    )
    assert seqs == list(range(1, newest + 1))
