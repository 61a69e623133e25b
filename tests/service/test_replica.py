"""Replicas on one database must see one storage; a start that would not is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from service.app import create_app
from service.auth import ensure_admin_token, sha256
from service.folders import token_file
from service.replica import Claim, StorageNotSharedError, replica_name
from service.services import build_services
from service.settings import Settings, load_settings
from service.store.opening import Store, open_store
from tests.service.given import Clock
from workers.storage import MARK, StorageAwayError

pytestmark = pytest.mark.anyio

LEASE_S = 15.0


def replica(home: Path, database_url: str, storage: Path) -> Settings:
    home.mkdir()
    return load_settings({"home": home, "database": database_url, "storage": str(storage)}, {})


async def start(settings: Settings, clock: Clock) -> None:
    app = create_app(services=build_services(settings, clock))
    async with app.router.lifespan_context(app):
        pass


async def test_a_second_replica_starts_only_with_the_storage_of_the_first(
    store: Store, database_url: str, tmp_path: Path, clock: Clock
) -> None:
    first = replica(tmp_path / "one", database_url, tmp_path / "storage")
    second = replica(tmp_path / "two", database_url, tmp_path / "storage")
    stranger = replica(tmp_path / "three", database_url, tmp_path / "elsewhere")
    await start(first, clock)
    await store.reconciler.take_lease(replica_name(first.home), LEASE_S)
    await Claim(store.reconciler, first.storage_url).take()
    await start(first, clock)
    await start(second, clock)
    with pytest.raises(StorageNotSharedError, match=r"one serves the same database.*elsewhere.*--storage"):
        await start(stranger, clock)
    clock.advance(LEASE_S + 1)
    await start(stranger, clock)  # nobody else is there any more


async def test_storage_of_another_installation_is_not_taken_for_ours(
    store: Store, database_url: str, tmp_path: Path, clock: Clock
) -> None:
    settings = replica(tmp_path / "two", database_url, tmp_path / "storage")
    mark = tmp_path / "storage" / MARK
    mark.parent.mkdir()
    mark.write_text("concertina-0123\n")
    with pytest.raises(StorageAwayError, match=r"belongs to another installation, concertina-0123.*--storage"):
        await Claim(store.reconciler, settings.storage_url).take()
    assert mark.read_text() == "concertina-0123\n"
    await store.reconciler.take_lease("elsewhere:/home", LEASE_S)
    with pytest.raises(StorageNotSharedError):
        await start(settings, clock)


async def test_replicas_that_start_at_once_agree_on_one_admin_token(database_url: str, tmp_path: Path) -> None:
    homes = [tmp_path / name for name in ("one", "two", "three")]
    stores = [open_store(database_url) for _ in homes]
    try:
        await asyncio.gather(
            *(ensure_admin_token(store.access, home) for store, home in zip(stores, homes, strict=True))
        )
        left = [token_file(home).read_text().strip() for home in homes if token_file(home).exists()]
        assert [await stores[0].access.kind_of(sha256(token)) for token in left] == ["admin"]
    finally:
        for store in stores:
            await store.close()
