"""Transactions of the store: in order, whole, and unharmed by callers who are cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest
from sqlalchemy import Connection, select, update

from service.store.database import Database, Write
from service.store.opening import Store
from service.store.schema import installation

pytestmark = pytest.mark.anyio


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


async def test_a_transaction_whose_caller_is_cancelled_ends_whole_and_the_next_writer_goes_on(store: Store) -> None:
    database, held = store.database, Held()
    await cancelled(await begun(database, held))
    assert await cluster(database) is None  # a reader does not wait for it
    held.may_end.set()
    assert await database.write(lambda write: write.change) == 2
    assert await cluster(database) == "held"


async def test_a_writer_who_is_cancelled_in_the_queue_writes_nothing(store: Store) -> None:
    database, held = store.database, Held()
    first = await begun(database, held)
    waiting = asyncio.create_task(database.write(lambda write: None))
    await asyncio.sleep(0)
    await cancelled(waiting)
    held.may_end.set()
    await first
    assert await database.change() == 1


async def test_writers_take_turns_in_the_order_in_which_they_asked(store: Store) -> None:
    database, held = store.database, Held()
    first = await begun(database, held)
    later = [asyncio.create_task(database.write(lambda write: write.change)) for _ in range(5)]
    await asyncio.sleep(0)
    held.may_end.set()
    await first
    assert await asyncio.gather(*later) == [2, 3, 4, 5, 6]


async def test_an_exception_takes_back_all_that_was_written(store: Store) -> None:
    def work(conn: Connection) -> None:
        conn.execute(update(installation).values(cluster="half"))
        raise ValueError("on the way")

    with pytest.raises(ValueError, match="on the way"):
        await store.database.write_quietly(work)
    assert await cluster(store.database) is None


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
