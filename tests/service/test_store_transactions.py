"""Transactions of the store: in order, whole, and unharmed by callers who are cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import sqlite3
import threading

import pytest
from sqlalchemy import Connection, make_url, select, update

from service.records import JobFilter
from service.states import JobState
from service.store import sqlite
from service.store.database import Database, Write
from service.store.opening import Store
from service.store.port import DatabaseAwayError
from service.store.schema import installation
from tests.service.given import spec

pytestmark = pytest.mark.anyio

in_threads = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""Where transactions run in threads one can be held in the middle; PostgreSQL runs them in the event loop."""


class Held:
    """Work that has begun its transaction and ends it when told to."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self, write: Write) -> None:
        self.has_begun.set()
        assert self.may_end.wait(60)
        write.conn.execute(update(installation).values(cluster="held"))


async def begun(database: Database, held: Held) -> asyncio.Task[None]:
    task = asyncio.create_task(database.write(held))
    assert await asyncio.to_thread(held.has_begun.wait, 60)
    return task


async def cluster(database: Database) -> str | None:
    return await database.read(lambda conn: conn.execute(select(installation.c.cluster)).scalar_one())


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@in_threads
async def test_a_transaction_whose_caller_is_cancelled_ends_whole_and_the_next_writer_goes_on(store: Store) -> None:
    database, held = store.database, Held()
    await cancelled(await begun(database, held))
    assert await cluster(database) is None  # a reader does not wait for it
    held.may_end.set()
    assert await database.write(lambda write: write.change) == 2
    assert await cluster(database) == "held"


@in_threads
async def test_a_writer_who_is_cancelled_in_the_queue_writes_nothing(store: Store) -> None:
    database, held = store.database, Held()
    first = await begun(database, held)
    waiting = asyncio.create_task(database.write(lambda write: None))
    await asyncio.sleep(0)
    await cancelled(waiting)
    held.may_end.set()
    await first
    assert await database.change() == 1


@in_threads
async def test_writers_take_turns_in_the_order_in_which_they_asked(store: Store) -> None:
    database, held = store.database, Held()
    first = await begun(database, held)
    later = [asyncio.create_task(database.write(lambda write: write.change)) for _ in range(5)]
    await asyncio.sleep(0)
    held.may_end.set()
    await first
    assert await asyncio.gather(*later) == [2, 3, 4, 5, 6]


@in_threads
async def test_who_waits_long_for_a_slow_writer_has_its_turn(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.0)
    database, slow = store.database, Held()
    first = await begun(database, slow)
    behind = asyncio.create_task(database.write(lambda write: write.change))
    await asyncio.sleep(0)
    slow.may_end.set()
    await first
    assert await behind == 2


@in_threads
async def test_those_whom_another_process_keeps_out_fail_with_the_first_and_later_ones_try_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.5)
    database = Database(database_url)
    assert await database.write(lambda write: write.change) == 1
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.25)  # so that those behind may be asked a while after the first
    with contextlib.closing(sqlite3.connect(make_url(database_url).database or "", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        kept_out = [asyncio.create_task(database.write(lambda write: write.change)) for _ in range(3)]
        told = await asyncio.gather(*kept_out, return_exceptions=True)
        other.execute("ROLLBACK")
    first, *later = (str(each) for each in told)
    assert first == "the database does not answer: database is locked"
    assert len(later) == 2
    assert all(re.fullmatch(r"the database was busy for \d s; try again", each) for each in later)
    assert await database.write(lambda write: write.change) == 2
    await database.close()


async def test_an_exception_takes_back_all_that_was_written(store: Store) -> None:
    def work(conn: Connection) -> None:
        conn.execute(update(installation).values(cluster="half"))
        raise ValueError("on the way")

    with pytest.raises(ValueError, match="on the way"):
        await store.database.write_quietly(work)
    assert await cluster(store.database) is None


async def test_callers_who_are_cancelled_at_any_moment_leave_whole_jobs_and_no_connection_behind(store: Store) -> None:
    for num_turns in range(60):
        task = asyncio.create_task(store.jobs.submit(spec()))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    last = (await store.jobs.submit(spec())).job
    found = (await store.jobs.page(JobFilter(), 100)).rows
    assert found[0] == last
    for job in found:
        assert [event.to for event in await store.jobs.events(job.id, 0, 10)] == [JobState.QUEUED]


async def test_a_server_that_is_not_there_is_a_database_that_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    database = Database(f"postgresql+asyncpg://postgres@127.0.0.1:{port}/n")
    with pytest.raises(DatabaseAwayError):
        await database.change()
    with pytest.raises(DatabaseAwayError):
        await database.write(lambda write: write.change)


@in_threads
async def test_closing_waits_for_what_has_begun(store: Store) -> None:
    database, held = store.database, Held()
    task = await begun(database, held)
    closing = asyncio.create_task(database.close())
    await asyncio.sleep(0)
    assert not closing.done()
    held.may_end.set()
    await closing
    await task
    assert await cluster(database) == "held"
