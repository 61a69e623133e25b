"""The API dies before and after every write of configurations; told again, there is one version more, or none."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from service.folders import BUNDLES
from service.store.bundles import BUNDLE_GRACE_S
from service.store.configurations import ConfigurationStore
from service.store.opening import open_store
from tests.faults.caller import Caller, caller
from tests.faults.crash_points import When, methods_of
from tests.faults.noted import nameless_spec
from tests.service.given import zip_bytes
from workers.storage_urls import open_storage

__all__ = ["caller"]

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

READS = {"configuration", "view", "page", "check_references"}
PLACE = "/configurations/held"


async def with_old_code(caller: Caller) -> dict[str, Any]:
    """A job whose code was uploaded so long ago that it goes with the last that names it."""
    headers = {"Content-Type": "application/zip"}
    bundle = await caller.do("/bundles", content=zip_bytes({"train.py": ""}), headers=headers)
    past = open_store(caller.installation.settings.database_url, lambda: time.time() - 2 * BUNDLE_GRACE_S)
    await past.bundles.touch(bundle["sha256"])
    await past.close()
    return nameless_spec(1, entrypoint="train:build", bundle=bundle["id"])


async def put(caller: Caller, place: str, spec: dict[str, Any]) -> tuple[int, list[int]]:
    """Its version then, and those before."""
    answer = await caller.say("PUT", place, json=spec)
    assert answer.status_code in (200, 201), answer.text
    seen = answer.json()
    assert seen["spec"]["bundle"] == spec.get("bundle")
    return seen["version"], [each["version"] for each in seen["history"]]


async def create(caller: Caller) -> None:
    assert await put(caller, "/configurations/second", nameless_spec(2)) == (1, [])
    assert len((await caller.see("/configurations"))["configurations"]) == 2


async def replace(caller: Caller) -> None:
    assert await put(caller, PLACE, nameless_spec(2)) == (2, [1])


async def delete(caller: Caller) -> None:
    assert (await caller.say("DELETE", PLACE)).status_code in (204, 404)
    assert (await caller.say("GET", PLACE)).status_code == 404


ACTS: Mapping[str, Callable[[Caller], Awaitable[None]]] = {"create": create, "replace": replace, "delete": delete}


def test_every_write_of_configurations_is_a_crash_point() -> None:
    assert set(methods_of(ConfigurationStore)) - READS == set(ACTS)


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("method", ACTS)
async def test_an_api_that_dies_at_a_write_of_configurations_is_told_again_and_it_is_done_once(
    caller: Caller, method: str, when: When
) -> None:
    await put(caller, PLACE, await with_old_code(caller))
    caller.arm("configurations", method, when)
    await ACTS[method](caller)
    await caller.judged()
    storage = open_storage(caller.installation.settings.storage_url)
    assert len(storage.keys(BUNDLES)) == (method == "create")
