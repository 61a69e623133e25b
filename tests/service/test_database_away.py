"""A PostgreSQL that goes away and comes back, moment by moment; under load: ``tests/faults/test_database_restarts``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias

import httpx2
import pytest
from sqlalchemy import Connection, make_url, select
from sqlalchemy.util import await_only

from service.reconciler.process import Exit
from service.settings import Settings, load_settings
from service.store.database import Database
from service.store.opening import open_store
from service.store.port import DatabaseAwayError
from service.store.schema import installation
from tests.faults.evidence import gather
from tests.faults.findings import assert_nothing_found
from tests.faults.oracle import Case, judge
from tests.service.given import Clock, spec_document
from tests.service.postgres import PostgresServer
from tests.service.test_reconciler_process import Scene
from tests.tcp_proxy import TcpProxy, proxied

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

RunningApp: TypeAlias = Callable[[Settings], AbstractAsyncContextManager[httpx2.AsyncClient]]
MAX_TRIES = 20
BOUND_S = 30.0
LOOPS = 100


@pytest.fixture
async def proxy(postgres: PostgresServer) -> AsyncIterator[TcpProxy]:
    async with proxied(lambda: asyncio.open_unix_connection(postgres.socket)) as made:
        yield made


@pytest.fixture
def database(postgres: PostgresServer, tmp_path: Path) -> Iterator[str]:
    """A database that the oracle reads at the end of the test."""
    url = postgres.migrated()
    yield url
    settings = load_settings({"home": tmp_path / "home", "database": url}, {})
    assert_nothing_found(judge(Case(evidence=gather(settings))))


@pytest.fixture
def behind_proxy(database: str, proxy: TcpProxy, tmp_path: Path) -> Settings:
    """A service whose database is on the other side of the proxy."""
    name = make_url(database).database
    url = f"postgresql+asyncpg://postgres@127.0.0.1:{proxy.port}/{name}?ssl=disable"
    return load_settings({"home": tmp_path / "home", "database": url, "poll_s": 0.05}, {})


async def post(client: httpx2.AsyncClient, key: str) -> httpx2.Response:
    return await client.post("/api/v1/jobs", json=spec_document(), headers={"Idempotency-Key": key})


def is_told_away(answer: httpx2.Response) -> bool:
    return (answer.status_code, answer.headers.get("Retry-After"), answer.json()["code"]) == (503, "1", "UNAVAILABLE")


async def accepted(client: httpx2.AsyncClient, key: str) -> str:
    """Repeat as the header says, without its pause: only cuts are between."""
    for _ in range(MAX_TRIES):
        answer = await post(client, key)
        if answer.status_code in (200, 201):
            return str(answer.json()["id"])
        assert is_told_away(answer)
    raise AssertionError(f"{key} was not taken in {MAX_TRIES} tries")


async def test_while_the_database_is_away_every_request_is_told_so_and_afterwards_all_is_well_at_once(
    running_app: RunningApp, behind_proxy: Settings, proxy: TcpProxy
) -> None:
    async with running_app(behind_proxy) as client:
        first = await accepted(client, "first")
        proxy.refuse()
        assert is_told_away(await post(client, "second"))
        assert is_told_away(await client.get(f"/api/v1/jobs/{first}"))
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/livez")).status_code == 200
        proxy.is_refusing = False
        assert (await post(client, "second")).status_code == 201
        assert (await client.get(f"/api/v1/jobs/{first}")).status_code == 200


async def test_a_service_that_starts_while_its_database_is_away_waits_for_it(
    running_app: RunningApp, behind_proxy: Settings, proxy: TcpProxy
) -> None:
    async def start_and_submit() -> int:
        async with running_app(behind_proxy) as client:
            return (await post(client, "first")).status_code

    proxy.refuse()
    started = asyncio.create_task(start_and_submit())
    await asyncio.wait_for(proxy.has_refused(), BOUND_S)
    proxy.is_refusing = False
    assert await asyncio.wait_for(started, BOUND_S) == 201


async def test_connections_cut_at_any_moment_of_a_submission_lose_nothing_and_make_nothing_twice(
    running_app: RunningApp, behind_proxy: Settings, proxy: TcpProxy
) -> None:
    async with running_app(behind_proxy) as client:
        await accepted(client, "warm")
        begin = proxy.num_chunks
        await accepted(client, "measured")
        num_moments = proxy.num_chunks - begin
        assert num_moments > 5
        ids = []
        for moment in range(1, num_moments + 1):
            proxy.reset_at_chunk(moment)
            ids.append(await accepted(client, f"cut {moment}"))
        proxy.reset_no_more()
        assert len(set(ids)) == num_moments
        listed = (await client.get("/api/v1/jobs", params={"page_size": 500})).json()["jobs"]
        assert {job["id"] for job in listed} > set(ids)
        assert len(listed) == num_moments + 2


async def test_the_reconciler_outlives_a_database_that_is_away_and_goes_on_with_its_jobs(
    behind_proxy: Settings, proxy: TcpProxy
) -> None:
    behind_proxy.home.mkdir()
    store = open_store(behind_proxy.database_url)
    scene = Scene(behind_proxy, store)
    try:
        proxy.refuse()
        _, run = scene.start()
        await asyncio.wait_for(proxy.has_refused(), BOUND_S)
        proxy.is_refusing = False
        job = await scene.running_job()
        proxy.refuse()
        await asyncio.wait_for(proxy.has_refused(), BOUND_S)
        proxy.is_refusing = False
        await scene.until(job, lambda row: row.samples > job.samples)
        assert not run.done()
    finally:
        await scene.end()
        await store.close()


async def test_a_replica_that_was_cut_off_is_succeeded_and_does_no_harm_when_it_comes_back(
    database: str, behind_proxy: Settings, proxy: TcpProxy, tmp_path: Path
) -> None:
    clock = Clock()
    first = replica(tmp_path / "home", behind_proxy.database_url, clock)
    second = replica(tmp_path / "other", database, clock)
    second.cluster = first.cluster
    try:
        _, first_run = first.start()
        job = await first.running_job()
        _, second_run = second.start()
        proxy.refuse()
        clock.advance(1000)
        seen = await second.until(job, lambda row: row.changed > job.changed + 1)
        proxy.is_refusing = False
        assert await asyncio.wait_for(first_run, BOUND_S) is Exit.FENCED_OUT
        now = await second.until(job, lambda row: row.samples > seen.samples)
        assert (now.state, now.attempt, now.term) == (job.state, job.attempt, job.term)
        assert not second_run.done()
    finally:
        for scene in (first, second):
            await scene.end()
            await scene.store.close()


def replica(home: Path, url: str, clock: Clock) -> Scene:
    home.mkdir()
    settings = load_settings({"home": home, "database": url, "poll_s": 0.05, "leader_lease_s": 1}, {})
    return Scene(settings, open_store(url, clock))


async def test_a_transaction_whose_connection_is_ended_while_it_says_nothing_is_told_that_the_database_is_away(
    behind_proxy: Settings, proxy: TcpProxy, postgres: PostgresServer
) -> None:
    database = Database(behind_proxy.database_url)

    async def end_it() -> None:
        """The server's word comes through, and the driver has read it; the end of the connection comes later."""
        known, proxy.is_keeping_open = proxy.num_answers, True
        await asyncio.to_thread(postgres.cut_all)
        while proxy.num_answers == known:
            await asyncio.sleep(0)
        for _ in range(LOOPS):
            await asyncio.sleep(0)

    def work(conn: Connection) -> None:
        conn.execute(select(installation.c.change))
        await_only(end_it())

    try:
        with pytest.raises(DatabaseAwayError):
            await database.read(work)
        proxy.is_keeping_open = False
        assert await database.change() >= 0
    finally:
        await database.close()
