"""A PostgreSQL that says nothing: behind a link that was cut, or by a hang of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

import asyncpg
import pytest
from sqlalchemy import make_url

from service.store import postgres as module
from service.store.database import Database, Write
from service.store.port import DatabaseAwayError
from tests import addresses
from tests.cluster.machines import Machines, wired_machines
from tests.service.postgres import PostgresServer
from tests.tcp_proxy import TcpProxy, proxied

pytestmark = [pytest.mark.anyio, pytest.mark.postgres, pytest.mark.timeout(60 + 2 * addresses.LIMIT_S)]

NUM_WRITERS = 20
FOR_EVER_S = 600.0
BOUND_S = 30.0
NUM_SENT, LONG = 100, "x" * 10_000
"""Of a statement's rows; together more than the driver gathers before it sends."""


@pytest.fixture
def machines() -> Iterator[Machines]:
    with wired_machines() as made:
        yield made


def reached_by(proxy: TcpProxy, host: str, url: str) -> Database:
    return Database(f"postgresql+asyncpg://postgres@{host}:{proxy.port}/{make_url(url).database}?ssl=disable")


async def nothing(database: Database) -> None:
    def work(write: Write) -> None:
        assert write.change

    await database.write(work)


async def all_at_once(database: Database) -> Sequence[BaseException | None]:
    return await asyncio.gather(*(nothing(database) for _ in range(NUM_WRITERS)), return_exceptions=True)


@pytest.mark.network
async def test_writers_and_readers_behind_a_link_that_was_cut_are_told_long_before_their_transactions_bound(
    machines: Machines, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRANSACTION_TIMEOUT_S", FOR_EVER_S)
    link = proxied(lambda: asyncio.open_unix_connection(postgres.socket), machines.listen_there())
    async with link as proxy:
        database = reached_by(proxy, machines.there, postgres.migrated())
        try:
            await asyncio.gather(*(database.change() for _ in range(module.NUM_CONNECTIONS)))
            machines.cut()
            told = await asyncio.gather(all_at_once(database), database.change(), return_exceptions=True)
            assert isinstance(told[0], list)
            assert {type(error) for error in (*told[0], told[1])} == {DatabaseAwayError}
            machines.mend()
            assert {*await all_at_once(database)} == {None}
        finally:
            await database.close()


@pytest.fixture
async def proxy(postgres: PostgresServer) -> AsyncIterator[TcpProxy]:
    async with proxied(lambda: asyncio.open_unix_connection(postgres.socket)) as made:
        yield made


async def test_one_writer_waits_for_a_database_that_swallows_everything_and_all_others_are_told_with_it(
    proxy: TcpProxy, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECT_TIMEOUT_S", 0.5)
    database = reached_by(proxy, "127.0.0.1", postgres.migrated())
    try:
        proxy.is_deaf = True
        assert {type(error) for error in await all_at_once(database)} == {DatabaseAwayError}
        assert proxy.num_accepted == 1
        proxy.is_deaf = False
        assert {*await all_at_once(database)} == {None}
    finally:
        await database.close()


@contextmanager
def stopped_in_the_middle(postgres: PostgresServer, url: str) -> Iterator[None]:
    """Another replica's process that stands still while it sends the rows of one statement: it holds their locks."""
    has_sent, may_go_on = threading.Event(), threading.Event()

    def rows() -> Iterator[tuple[str]]:
        for _ in range(NUM_SENT):
            yield (LONG,)
        has_sent.set()
        may_go_on.wait()

    async def write() -> None:
        settings = {"application_name": "concertina"}
        conn = await asyncpg.connect(
            host=str(postgres.socket_folder),
            user="postgres",
            database=make_url(url).database,
            server_settings=settings,
        )
        try:
            async with conn.transaction():
                await conn.execute("UPDATE installation SET change = change + 1")
                await conn.executemany("SELECT $1::text", rows())
        except Exception:  # the driver tells the end of its connection in the middle of a statement in several ways
            return
        finally:
            conn.terminate()

    thread = threading.Thread(target=asyncio.run, args=(write(),))
    thread.start()
    try:
        assert has_sent.wait(BOUND_S)
        yield
    finally:
        may_go_on.set()
        thread.join(BOUND_S)


async def test_a_replica_that_stopped_in_the_middle_of_a_statement_is_ended_by_the_next_that_waits_for_it(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUSY_TIMEOUT_S", 1.0)
    url = postgres.migrated()
    database = Database(url)
    try:
        with stopped_in_the_middle(postgres, url):
            with pytest.raises(DatabaseAwayError, match="lock timeout"):
                await nothing(database)
            await nothing(database)
    finally:
        await database.close()
