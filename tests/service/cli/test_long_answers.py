"""What is longer than one answer of the API is fetched to its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from sqlalchemy import Connection, insert

from service.store.opening import Store, open_store
from service.store.schema import timeline
from service.telemetry import MAX_TIMELINE_ROWS
from tests.service.cli.calls import Api, Run
from tests.service.given import START_S, Clock, leader, log, placed, row, snapshot
from workers.plan import TimelineKind

NUM_LINES = 110_000
LAST = b"ValueError: what went wrong\n"


def written(api: Api, write: Callable[[Store], Coroutine[Any, Any, str]]) -> str:
    """The id of a job that is written to the API's own database, as the reconciler would."""

    async def work() -> str:
        store = open_store(f"sqlite:///{api.home / 'concertina.db'}", Clock())
        try:
            return await write(store)
        finally:
            await store.close()

    return asyncio.run(work())


@pytest.fixture
def talkative(api: Api) -> str:
    """Its log is of three answers, the last line being the one that matters."""

    async def write(store: Store) -> str:
        job = await placed(store, fence := await leader(store), workers={"min": 1, "max": 1})
        whole = b"".join(b"line %d of the log\n" % n for n in range(NUM_LINES)) + LAST
        size = 100_000
        chunks = tuple(log(whole[at : at + size], offset=at) for at in range(0, len(whole), size))
        await store.reconciler.fold(snapshot(job, logs=chunks, workers=()), fence)
        return job.id

    return written(api, write)


def test_the_log_is_printed_to_its_last_line(call: Run, talkative: str) -> None:
    lines = call("logs", talkative).stdout.splitlines(keepends=True)
    assert (len(lines), lines[-1]) == (NUM_LINES + 1, LAST.decode())
    document = json.loads(call("logs", talkative, "-o", "json").stdout)
    assert document["text"] == "".join(lines)
    assert document["next_offset"] == len(document["text"])
    assert call("logs", talkative, "--rank", "0").stdout == document["text"]
    assert call("logs", talkative, "--rank", "1").stdout == ""
    assert call("logs", talkative, "--tail", "1").stdout == LAST.decode()


def test_the_timeline_is_fetched_to_its_last_row(api: Api) -> None:
    def add(conn: Connection, job_id: str) -> None:
        given = {"job_id": job_id, "attempt": 1, "changed": 0, "time": START_S, "actor": "", "reason": ""}
        rows = [
            {
                **given,
                "seq": n,
                "step": n,
                "key": f"k{n}",
                "kind": TimelineKind.CHECKPOINT,
                "before": "{}",
                "after": "{}",
            }
            for n in range(2, MAX_TIMELINE_ROWS + 51)
        ]
        conn.execute(insert(timeline), rows)

    async def write(store: Store) -> str:
        job = await placed(store, fence := await leader(store))
        await store.reconciler.fold(snapshot(job, timeline=(row("first"),)), fence)
        await store.database.write_quietly(lambda conn: add(conn, job.id))
        return job.id

    job_id = written(api, write)
    with api.client() as client:
        assert [entry["seq"] for entry in client.timeline(job_id)] == list(range(1, MAX_TIMELINE_ROWS + 51))
        assert [entry["seq"] for entry in client.timeline(job_id, MAX_TIMELINE_ROWS + 48)] == [10_049, 10_050]
