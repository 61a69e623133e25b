"""The API dies before and after every write of schedules; its caller says the same again, and it is done once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from service.store.schedules import ScheduleStore
from tests.faults.caller import Caller, caller
from tests.faults.crash_points import When, methods_of
from tests.service.scheduled import schedule_document

__all__ = ["caller"]

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

READS = {"check_references", "schedule", "page", "changed", "runs", "latest_runs", "due"}
NEW = {"Idempotency-Key": "new"}
YEARLY = "0 0 1 1 *"


async def create(caller: Caller, _: str) -> None:
    document = schedule_document(name="second", cron=YEARLY)
    await caller.do("/schedules", json=document, headers=NEW)
    assert len((await caller.see("/schedules?search=second"))["schedules"]) == 1


async def replace(caller: Caller, place: str) -> None:
    answer = await caller.say("PUT", place, json=schedule_document(cron="0 0 2 1 *"))
    assert (answer.status_code, answer.json()["spec"]["cron"]) == (200, "0 0 2 1 *")


async def pause(caller: Caller, place: str) -> None:
    assert (await caller.do(f"{place}/pause"))["state"] == "PAUSED"


async def resume(caller: Caller, place: str) -> None:
    await pause(caller, place)
    assert (await caller.do(f"{place}/resume"))["state"] == "ACTIVE"


async def trigger(caller: Caller, place: str) -> None:
    assert (await caller.do(f"{place}/trigger", headers=NEW))["outcome"] == "STARTED"
    assert len((await caller.see(f"{place}/runs"))["runs"]) == 1
    assert len((await caller.see("/jobs"))["jobs"]) == 1


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
    made = await caller.do("/schedules", json=schedule_document(cron=YEARLY))
    caller.arm("schedules", method, when)
    await ACTS[method](caller, f"/schedules/{made['id']}")
    await caller.judged()
