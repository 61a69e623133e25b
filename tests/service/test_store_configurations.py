"""The contract of the store for configurations, on each kind of database."""

from __future__ import annotations

import pytest

from service.configuration_records import ConfigurationRow, ReplacedVersion
from service.store import configurations
from service.store.configurations import replace_with
from service.store.opening import Store
from service.store.port import StaleRowError
from service.store.references import UnknownReferenceError
from tests.service.given import Clock, leader, spec, stored_bundle

pytestmark = pytest.mark.anyio


async def seen(store: Store) -> tuple[ConfigurationRow, list[ReplacedVersion]]:
    view = await store.configurations.view("digits", 10)
    assert view is not None
    return view[0], view[1].rows


async def test_each_version_replaces_the_one_before_and_leaves_it_in_the_history(store: Store, clock: Clock) -> None:
    first = await store.configurations.create("digits", spec(seed=1))
    with pytest.raises(StaleRowError):
        await store.configurations.create("digits", spec(seed=9))
    clock.advance(60)
    second = (await store.configurations.replace(first, spec(seed=2))).configuration
    with pytest.raises(StaleRowError):
        await store.configurations.replace(first, spec(seed=9))
    clock.advance(60)
    evidence = {"trial": 3, "effect": 0.01}
    await store.database.write(lambda write: replace_with(write, second, spec(seed=3), "sweep_x", evidence))
    row, history = await seen(store)
    assert (row.version, row.document["seed"]) == (3, 3)
    assert "name" not in row.document
    told = [(each.version, each.document["seed"], each.by, each.evidence) for each in history]
    assert told == [(2, 2, "sweep_x", evidence), (1, 1, "user", None)]
    assert history[0].replaced_at - history[1].replaced_at == 60
    await store.configurations.delete(row)
    assert await store.configurations.view("digits", 10) is None
    await store.configurations.create("digits", spec())
    assert (await seen(store))[1] == []


async def test_only_so_many_versions_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configurations, "MAX_HISTORY", 2)
    row = await store.configurations.create("digits", spec())
    for seed in range(1, 5):
        row = (await store.configurations.replace(row, spec(seed=seed))).configuration
    assert [each.version for each in (await seen(store))[1]] == [4, 3]


async def test_a_configuration_keeps_its_bundle_until_it_names_another(store: Store, clock: Clock) -> None:
    mine = await stored_bundle(store, "a" * 64)
    own = {"entrypoint": "train:build", "bundle": mine.id}
    with pytest.raises(UnknownReferenceError):
        await store.configurations.create("digits", spec(entrypoint="train:build", bundle="bundle_x"))
    row = await store.configurations.create("digits", spec(**own))
    clock.advance(1e6)
    fence = await leader(store)
    await store.reconciler.forget_bundles(1.0, 1.0, fence)
    assert await store.reconciler.bundle(mine.id) is not None
    assert (await store.configurations.replace(row, spec())).bundle_key == mine.key
    assert await store.reconciler.bundle(mine.id) is None
