"""The API dies before and after every write of schedules; its caller says the same again, and it is done once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from service.store.schedules import ScheduleStore
from tests.faults.crash_points import CrashPoint, When, methods_of
from tests.faults.findings import assert_nothing_found, at_rest
from tests.faults.processes import API
from tests.faults.test_api_crash_points import Caller, caller, found
from tests.service.scheduled import schedule_document
from tests.waiting import LIMIT_S

__all__ = ["caller"]

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

READS = {"check_references", "schedule", "page", "changed", "runs", "latest_runs", "due"}
NEW = {"Idempotency-Key": "new"}
YEARLY = "0 0 1 1 *"


async def create(caller: Caller, _: str) -> None:
    document = schedule_document(name="second", cron=YEARLY)
    assert (await caller.say("POST", "/schedules", json=document, headers=NEW)).status_code in (200, 201)
    listed = (await caller.say("GET", "/schedules?search=second")).json()["schedules"]
    assert len(listed) == 1


async def replace(caller: Caller, place: str) -> None:
    answer = await caller.say("PUT", place, json=schedule_document(cron="0 0 2 1 *"))
    assert (answer.status_code, answer.json()["spec"]["cron"]) == (200, "0 0 2 1 *")


async def pause(caller: Caller, place: str) -> None:
    assert (await caller.say("POST", f"{place}/pause")).json()["state"] == "PAUSED"


async def resume(caller: Caller, place: str) -> None:
    await pause(caller, place)
    assert (await caller.say("POST", f"{place}/resume")).json()["state"] == "ACTIVE"


async def trigger(caller: Caller, place: str) -> None:
    assert (await caller.say("POST", f"{place}/trigger", headers=NEW)).json()["outcome"] == "STARTED"
    assert len((await caller.say("GET", f"{place}/runs")).json()["runs"]) == 1
    assert len((await caller.say("GET", "/jobs")).json()["jobs"]) == 1


async def delete(caller: Caller, place: str) -> None:
    assert (await caller.say("DELETE", place)).status_code in (204, 404)
    assert (await caller.say("GET", place)).status_code == 404


ACTS: dict[str, Callable[[Caller, str], Awaitable[None]]] = {
    "create": create,
    "replace": replace,
    "pause": pause,
    "resume": resume,
    "fire": trigger,
    "delete": delete,
}


def test_every_write_of_schedules_is_a_crash_point() -> None:
    assert set(methods_of(ScheduleStore)) - READS == set(ACTS)


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("method", ACTS)
async def test_an_api_that_dies_at_a_write_of_schedules_is_told_again_and_it_is_done_once(
    caller: Caller, method: str, when: When
) -> None:
    made: dict[str, Any] = (await caller.say("POST", "/schedules", json=schedule_document(cron=YEARLY))).json()
    caller.installation.kill(API)
    caller.installation.start(API, CrashPoint(method=method, when=when, part="schedules"))
    await ACTS[method](caller, f"/schedules/{made['id']}")
    assert caller.num_deaths == 1, "the crash point was not reached"
    assert_nothing_found(await at_rest(lambda: found(caller), LIMIT_S))
