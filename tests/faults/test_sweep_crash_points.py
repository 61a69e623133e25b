"""The API dies before and after every write of sweeps; its caller says the same again, and it is done once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from service.store.sweeps import SweepStore
from tests.faults.caller import Caller, caller, in_state
from tests.faults.crash_points import When, methods_of
from tests.faults.evidence import gather
from tests.faults.noted import nameless_spec, noted_sweep

__all__ = ["caller"]

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

READS = {"check_references", "sweep", "view", "page", "trials", "standings", "experience", "changed"}
LONG = 100_000
"""Steps of jobs that do not end by themselves."""


async def sweep(caller: Caller, **changes: Any) -> str:
    """Where it is."""
    return f"/sweeps/{await caller.make('/sweeps', 1, noted_sweep(1, **changes))}"


async def under_way(caller: Caller) -> tuple[str, str]:
    """A sweep of one trial that does not end by itself, and its job."""
    place = await sweep(caller, trials=1, job=nameless_spec(1, steps=LONG))
    (trial,) = (await caller.until(f"{place}/trials", lambda seen: seen["trials"]))["trials"]
    await caller.until(f"/jobs/{trial['job_id']}", in_state("RUNNING"))
    return place, trial["job_id"]


async def ended(caller: Caller) -> tuple[str, Any]:
    """A sweep of two trials that are complete, and what it is."""
    place = await sweep(caller, trials=2)
    return place, await caller.until(place, in_state("SUCCEEDED"))


async def stop(caller: Caller, place: str) -> Any:
    """As it is once nothing of it goes on."""
    await caller.do(f"{place}/stop")
    return await caller.until(place, lambda seen: not seen["trials"]["running"] + seen["trials"]["waiting"])


async def say_seen(caller: Caller, seen: Any, verb: str, **request: Any) -> None:
    """Say it of what was seen, so that it is refused where it was done already."""
    answer = await caller.say("POST", f"/sweeps/{seen['id']}/{verb}", headers={"If-Match": seen["etag"]}, **request)
    assert answer.status_code in (200, 412), answer.text


async def create(caller: Caller) -> None:
    place = await sweep(caller)
    assert (await caller.until(place, in_state("SUCCEEDED")))["trials"]["complete"] == 3
    assert len((await caller.see("/sweeps"))["sweeps"]) == 1


async def pause_and_resume(caller: Caller) -> None:
    place, job_id = await under_way(caller)
    assert (await caller.do(f"{place}/pause"))["state"] == "PAUSED"
    await caller.until(f"/jobs/{job_id}", in_state("PAUSED"))
    assert (await caller.do(f"{place}/resume"))["state"] == "RUNNING"
    await caller.until(f"/jobs/{job_id}", in_state("RUNNING"))
    await stop(caller, place)


async def end_early(caller: Caller) -> None:
    place, job_id = await under_way(caller)
    seen = await stop(caller, place)
    assert (seen["state"], seen["trials"]["pruned"]) == ("STOPPED", 1)
    await caller.until(f"/jobs/{job_id}", in_state("CANCELLED"))


async def extend(caller: Caller) -> None:
    place, seen = await ended(caller)
    await say_seen(caller, seen, "extend", json={"trials": 3})
    assert (await caller.until(place, in_state("SUCCEEDED")))["trials"]["complete"] == 3


async def retry_failed(caller: Caller) -> None:
    place, job_id = await under_way(caller)
    await caller.do(f"/jobs/{job_id}/cancel")
    seen = await caller.until(place, in_state("FAILED"))
    await say_seen(caller, seen, "retry-failed")
    assert (await caller.until(f"/jobs/{job_id}", in_state("RUNNING")))["attempt"] == 2
    seen = await stop(caller, place)
    assert (seen["trials"]["total"], seen["trials"]["pruned"]) == (1, 1)


async def promote(caller: Caller) -> None:
    """Against a configuration that takes for ever, until it is stopped."""
    (await caller.say("PUT", "/configurations/held", json=nameless_spec(2, steps=LONG))).raise_for_status()
    place, seen = await ended(caller)
    await caller.do(f"{place}/promote", json={"configuration": "held"})
    await caller.until(place, lambda seen: seen["promotion"]["runs"]["started"])
    stopped = await caller.do(f"{place}/stop")
    assert (stopped["state"], stopped["promotion"]["state"]) == ("SUCCEEDED", "STOPPED")
    await caller.until("/jobs", lambda seen: all(job["finished_at"] for job in seen["jobs"]))
    assert gather(caller.installation.settings).sweeps[seen["id"]].promotions == ("STOPPED",)


ACTS: Mapping[str, tuple[Callable[[Caller], Awaitable[None]], ...]] = {
    "create": (create,),
    "move": (pause_and_resume, end_early),
    "extend": (extend,),
    "retry_failed": (retry_failed,),
    "ask_promotion": (promote,),
    "stop_promotion": (promote,),
}


def test_every_write_of_sweeps_is_a_crash_point() -> None:
    assert set(methods_of(SweepStore)) - READS == set(ACTS)


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize(("method", "act"), [(method, act) for method, acts in ACTS.items() for act in acts])
async def test_an_api_that_dies_at_a_write_of_sweeps_is_told_again_and_it_is_done_once(
    caller: Caller, method: str, act: Callable[[Caller], Awaitable[None]], when: When
) -> None:
    caller.arm("sweeps", method, when)
    await act(caller)
    await caller.judged()
