"""What one replica commits another is told of, where the database can do so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest

from service.records import ClusterView
from service.store.opening import Store, open_store
from service.store.transactions import News
from tests.service.given import Clock, leader, spec
from tests.service.postgres import PostgresServer

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

BOUND_S = 30.0


class Bell:
    """Rings; each ring can be waited for once."""

    def __init__(self) -> None:
        self._rung: asyncio.Queue[None] = asyncio.Queue()

    def ring(self) -> None:
        self._rung.put_nowait(None)

    async def has_rung(self) -> None:
        async with asyncio.timeout(BOUND_S):
            await self._rung.get()
        while not self._rung.empty():
            self._rung.get_nowait()

    @property
    def is_silent(self) -> bool:
        return self._rung.empty()


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.migrated()


@pytest.fixture
async def here(url: str) -> AsyncIterator[Store]:
    store = open_store(url, Clock())
    yield store
    await store.close()


@pytest.fixture
async def there(url: str) -> AsyncIterator[Store]:
    store = open_store(url, Clock())
    yield store
    await store.close()


@asynccontextmanager
async def watching(watch: Callable[[Callable[[], None]], object], bell: Bell) -> AsyncIterator[None]:
    task = asyncio.create_task(watch(bell.ring))  # type: ignore[arg-type]  # a coroutine function
    await bell.has_rung()  # it listens now
    yield
    task.cancel()
    await asyncio.wait([task])


async def test_a_reconciler_hears_of_wishes_at_once_and_not_of_its_own_writes(here: Store, there: Store) -> None:
    bell, api = Bell(), Bell()
    fence = await leader(here)
    async with (
        watching(here.reconciler.watch_wishes, bell),
        watching(lambda wake: there.database.watch(tuple(News), wake), api),
    ):
        await there.jobs.submit(spec())
        await bell.has_rung()
        await api.has_rung()
        await here.reconciler.put_cluster(ClusterView(is_up=True), fence)
        await api.has_rung()
        assert bell.is_silent


async def test_who_listens_is_woken_and_listens_again_after_its_connection_was_cut(
    here: Store, there: Store, postgres: PostgresServer
) -> None:
    bell = Bell()
    async with watching(here.reconciler.watch_wishes, bell):
        postgres.cut_all()
        await bell.has_rung()
        await there.jobs.submit(spec())
        await bell.has_rung()


async def test_a_connection_that_is_lost_before_it_listens_is_replaced(
    here: Store, there: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bell, tries, listen = Bell(), [], asyncpg.Connection.add_listener

    async def lose_the_first(self: asyncpg.Connection, *args: object) -> None:
        tries.append(self)
        if len(tries) == 1:
            await self.close()
        await listen(self, *args)

    monkeypatch.setattr(asyncpg.Connection, "add_listener", lose_the_first)
    async with watching(here.reconciler.watch_wishes, bell):
        await there.jobs.submit(spec())
        await bell.has_rung()
    assert len(tries) >= 2
