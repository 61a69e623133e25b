"""``/sweeps`` over HTTP: an ended sweep that goes on, by more trials or by those that failed."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from service.states import JobState
from service.sweep_records import SweepState
from tests.service.swept import JOB, SWEEPS, Swept, created, point
from tests.service.test_api_jobs import assert_problem

pytestmark = pytest.mark.anyio


async def test_an_ended_sweep_goes_on_when_it_is_extended_or_its_failures_are_retried(
    client: httpx2.AsyncClient, swept: Swept
) -> None:
    place = f"{SWEEPS}/{swept.id}"
    assert "none failed" in assert_problem(await client.post(f"{place}/retry-failed"), 409, "CONFLICT")["detail"]
    await swept.play()
    await swept.finish()
    await swept.look()
    assert (await client.get(place)).json()["state"] == "SUCCEEDED"
    refused = await client.post(f"/api/v1/jobs/{(await swept.job(2)).id}/retry")
    detail = assert_problem(refused, 409, "ILLEGAL_TRANSITION")["detail"]
    assert f"trial 2 of {swept.id}" in detail
    assert f"{place}/retry-failed" in detail
    retried = (await client.post(f"{place}/retry-failed")).json()
    assert (retried["state"], retried["trials"]["failed"]) == ("RUNNING", 0)
    await swept.look()
    assert (await swept.job(2)).state is JobState.QUEUED
    await swept.finish()
    for wanted, told in ((8, "not above the 8"), (0, "from 1 to 10,000"), ("9", "whole number"), (True, "whole")):
        refused = assert_problem(await client.post(f"{place}/extend", json={"trials": wanted}), 422, "INVALID")
        assert (refused["errors"][0]["pointer"], told in refused["errors"][0]["detail"]) == ("/trials", True)
    extended = (await client.post(f"{place}/extend", json={"trials": 12})).json()
    assert (extended["state"], extended["spec"]["trials"], extended["trials"]["total"]) == ("RUNNING", 12, 12)


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"time_s": 5}, "limits.time_s=5 is reached after"),
        ({"trials_without_improvement": 1}, "limits.trials_without_improvement=1 is reached"),
    ],
)
async def test_an_ended_sweep_does_not_go_on_where_a_limit_would_end_it_at_once(
    client: httpx2.AsyncClient, swept: Swept, limits: dict[str, Any], told: str
) -> None:
    limited = await swept.created(swept.store, swept.clock, swept.fence, limits=limits)
    await limited.play()
    await limited.finish()
    await limited.look()
    for verb, body in (("extend", {"trials": 12}), ("retry-failed", None)):
        refused = assert_problem(await client.post(f"{SWEEPS}/{limited.id}/{verb}", json=body), 409, "CONFLICT")
        assert told in refused["detail"]
        assert f"make a sweep with wider ones, and warm_start: [{limited.id}]" in refused["detail"]
    assert (await limited.row()).state is SweepState.SUCCEEDED


async def test_a_promotion_that_still_runs_leaves_an_extension_no_more_than_it_has_left(
    client: httpx2.AsyncClient, swept: Swept
) -> None:
    limited = await swept.created(swept.store, swept.clock, swept.fence, limits={"time_s": 1000})
    place = f"{SWEEPS}/{limited.id}"
    await limited.play()
    await limited.finish()
    await limited.look()
    await client.put("/api/v1/configurations/digits", json=JOB)
    await client.post(f"{place}/promote", json={"configuration": "digits"})
    await limited.compare()
    swept.clock.now_s += 1000
    for verb, body in (("extend", {"trials": 12}), ("retry-failed", None)):
        refused = assert_problem(await client.post(f"{place}/{verb}", json=body), 409, "CONFLICT")
        assert "limits.time_s=1000 is reached after" in refused["detail"]
    assert (await client.get(place)).json()["promotion"]["state"] == "RUNNING"


async def refusals(client: httpx2.AsyncClient, swept: Swept) -> tuple[str, str]:
    """What is told to whom resumes it, and to whom retries its failed trials."""
    place = f"{SWEEPS}/{swept.id}"
    resumed = assert_problem(await client.post(f"{place}/resume"), 409, "ILLEGAL_TRANSITION")["detail"]
    retried = assert_problem(await client.post(f"{place}/retry-failed"), 409, "CONFLICT")["detail"]
    return resumed.rpartition("; ")[2], retried.rpartition("; ")[2]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "extend it and it goes on"),
        ({"limits": {"time_s": 5}}, "limits.time_s=5 is reached after 20 s, and limits stay as they are, so make a"),
        (
            {"space": {"batch.global_size": {"choice": [32, 64]}}},
            "it may have no more trials, so make a sweep with a wider space, and",
        ),
        (
            {"space": {"optimizer.lr": {"uniform": [0.1, 1]}}, "population": "pbt", "pruner": "none", "trials": 2},
            "it may have no more trials, so make a sweep with a wider space or more parallel trials, and warm_start",
        ),
    ],
)
async def test_who_asks_too_much_of_an_ended_sweep_is_told_what_would_let_it_go_on(
    client: httpx2.AsyncClient, swept: Swept, changes: dict[str, Any], told: str
) -> None:
    ended = await swept.created(swept.store, swept.clock, swept.fence, **changes)
    await ended.begin({"optimizer.lr": 0.1} if "optimizer.lr" in changes.get("space", {}) else point(0.1))
    await ended.complete(0, 0.5)
    await ended.finish()
    for hint in await refusals(client, ended):
        assert hint.startswith(told)


async def test_a_sweep_that_runs_or_is_paused_goes_on_without_a_retry(client: httpx2.AsyncClient, swept: Swept) -> None:
    place = f"{SWEEPS}/{swept.id}"
    for verb, hint in (("pause", "resume it and it goes on"), ("resume", "it goes on by itself")):
        await client.post(f"{place}/{verb}")
        refused = assert_problem(await client.post(f"{place}/retry-failed"), 409, "CONFLICT")["detail"]
        assert refused == f"there is no trial to retry: none failed; {hint}"


async def test_a_sweep_whose_trials_all_failed_goes_on_by_retrying_them_and_not_with_others(
    client: httpx2.AsyncClient, swept: Swept
) -> None:
    await swept.begin(*(point(0.1 / n) for n in range(1, 6)))
    for number in range(5):
        await swept.end(number, JobState.FAILED)
    await swept.finish()
    place = f"{SWEEPS}/{swept.id}"
    resumed = assert_problem(await client.post(f"{place}/resume"), 409, "ILLEGAL_TRANSITION")["detail"]
    assert resumed.endswith("; retry its failed trials and it goes on")
    extended = assert_problem(await client.post(f"{place}/extend", json={"trials": 12}), 409, "CONFLICT")["detail"]
    assert extended.startswith("all 5 trials failed, so it would end again at once; see to the cause and retry")
    assert (await client.post(f"{place}/retry-failed")).json()["state"] == "RUNNING"


async def test_a_sweep_that_may_try_every_point_cannot_be_extended(client: httpx2.AsyncClient) -> None:
    sweep = await created(client, space={"batch.global_size": {"choice": [32, 64]}}, sampler="grid")
    assert sweep["trials"]["total"] == 2
    refused = await client.post(f"{SWEEPS}/{sweep['id']}/extend", json={"trials": 9})
    assert "the space has 2 points" in assert_problem(refused, 422, "INVALID")["errors"][0]["detail"]


@pytest.mark.parametrize(("parallel", "sizes", "most"), [(4, {"int": [32, 64]}, 4), (8, {"choice": [32, 64, 128]}, 3)])
async def test_a_population_is_not_extended_beyond_what_trains_at_once_from_points_of_its_own(
    client: httpx2.AsyncClient, parallel: int, sizes: dict[str, Any], most: int
) -> None:
    space = {"batch.global_size": sizes}
    sweep = await created(client, population="pbt", pruner="none", space=space, trials=2, parallel=parallel)
    place = f"{SWEEPS}/{sweep['id']}/extend"
    refused = assert_problem(await client.post(place, json={"trials": 8}), 422, "INVALID")["errors"][0]
    assert (refused["pointer"], f"of 8 not more than {most} could" in refused["detail"]) == ("/trials", True)
    assert (await client.post(place, json={"trials": most})).json()["spec"]["trials"] == most


@pytest.mark.parametrize(("verb", "body"), [("extend", {"trials": 12}), ("retry-failed", None)])
@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_promotion_that_was_asked_for_comes_once_a_sweep_that_goes_on_has_ended_again(
    client: httpx2.AsyncClient, swept: Swept, verb: str, body: dict[str, Any] | None, has_begun: bool
) -> None:
    place = f"{SWEEPS}/{swept.id}"
    await client.put("/api/v1/configurations/digits", json=JOB)
    await swept.play()
    await swept.finish()
    await swept.look()
    await client.post(f"{place}/promote", json={"configuration": "digits"})
    if has_begun:
        await swept.compare()
    assert (await client.post(f"{place}/{verb}", json=body)).status_code == 200
    assert (await swept.row()).promote_to == "digits"
    await swept.finish()
    assert (await swept.row()).promote_to == "digits"
