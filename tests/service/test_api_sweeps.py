"""``/sweeps`` over HTTP: shapes, headers, refusals, and what becomes of trials."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from service.api.sweep_shapes import Sweep, SweepEstimate, SweepList, SweepReport, SweepTrials
from service.services import Services
from service.settings import Settings
from service.states import JobState
from service.sweep_records import SweepState
from tests.service.given import Clock, record, snapshot
from tests.service.swept import JOB, Swept, point, sweep_document
from tests.service.test_api_jobs import assert_problem

pytestmark = pytest.mark.anyio

SWEEPS = "/api/v1/sweeps"


async def created(client: httpx2.AsyncClient, **changes: Any) -> dict[str, Any]:
    answer = await client.post(SWEEPS, json=sweep_document(**changes))
    assert answer.status_code == 201, answer.text
    sweep: dict[str, Any] = answer.json()
    return sweep


@pytest.fixture
async def swept(client: httpx2.AsyncClient, services: Services, clock: Clock) -> Swept:
    """A sweep over the API whose reconciler the test plays."""
    sweep = await created(client)
    return await Swept.of(services.store, clock, sweep["id"])


async def test_a_new_sweep_is_answered_whole_with_its_place_and_tag(client: httpx2.AsyncClient) -> None:
    answer = await client.post(SWEEPS, json=sweep_document())
    sweep = answer.json()
    Sweep.model_validate(sweep)
    assert (
        " ".join(sweep) == "id name state reason spec configuration best trials promotion created_at finished_at etag"
    )
    assert (answer.headers["location"], answer.headers["etag"]) == (f"{SWEEPS}/{sweep['id']}", sweep["etag"])
    assert (sweep["state"], sweep["best"], sweep["finished_at"]) == ("RUNNING", None, None)
    assert sweep["trials"] == {"total": 8, "waiting": 8, "running": 0, "complete": 0, "pruned": 0, "failed": 0}
    spec = sweep["spec"]
    assert (spec["sampler"], spec["mode"], spec["job"]["optimizer"]) == (
        "tpe",
        "max",
        {"base_batch": 128, "clip_norm": None},
    )
    assert (await client.get(answer.headers["location"])).json() == sweep
    unchanged = await client.get(answer.headers["location"], headers={"If-None-Match": sweep["etag"]})
    assert unchanged.status_code == 304
    validated = await client.post(f"{SWEEPS}/validate", json=sweep_document())
    assert validated.json() == spec
    assert (await client.get(f"{SWEEPS}/sweep_{'0' * 26}")).status_code == 404


async def test_repeating_a_call_with_its_key_makes_one_sweep(client: httpx2.AsyncClient) -> None:
    key = {"Idempotency-Key": "k1"}
    first = await client.post(SWEEPS, json=sweep_document(), headers=key)
    again = await client.post(SWEEPS, json=sweep_document(), headers=key)
    assert (first.status_code, again.status_code, again.json()) == (201, 200, first.json())
    assert again.headers["idempotent-replayed"] == "true"
    other = await client.post(SWEEPS, json=sweep_document(name="other"), headers=key)
    assert_problem(other, 422, "IDEMPOTENCY_KEY_REUSED")
    assert len((await client.get(SWEEPS)).json()["sweeps"]) == 1


@pytest.mark.parametrize(
    ("changes", "code", "pointer", "told"),
    [
        ({"trials": 0}, "INVALID", "/trials", "greater than or equal to 1"),
        ({"spaces": {}}, "INVALID", "/spaces", "did you mean 'space'?"),
        ({"space": {"optimizer.rl": {"uniform": [0, 1]}}}, "INVALID", "/space/optimizer.rl", "known here: base"),
        ({"space": {"bundle": {"choice": ["a", "b"]}}}, "INVALID", "/space/bundle", "the same for all trials"),
        ({"job": {**JOB, "entrypoint": "a:b", "bundle": "x"}}, "INVALID", "/job/bundle", "there is no bundle 'x'"),
        ({"job": {**JOB, "init_from": {"job": "job_x"}}}, "INVALID", "/job/init_from/job", "there is no job 'job_x'"),
        ({"warm_start": ["sweep_x"]}, "INVALID", "/warm_start/0", "there is no sweep 'sweep_x'"),
        ({"limits": {"cost": 1}}, "INVALID", "/limits/cost", "set price_cpu_hour, or use time_s"),
        ({"population": "pbt", "pruner": "none"}, "INVALID", "/parallel", "pbt trains all its trials at once"),
        (
            {"promote": "digits"},
            "INVALID",
            "/promote",
            "there is no configuration 'digits' that a winner could replace",
        ),
        ({"job": {"from": "digits"}}, "INVALID", "/job/from", "no configuration 'digits'; put one at /configurations"),
        ({"job": {"from": "No_Name"}}, "INVALID", "/job/from", "there is no configuration 'No_Name'"),
        ({"job": {"from": "digits", "seed": 1}}, "INVALID", "/job", "stands alone; take out 'seed'"),
    ],
)
async def test_a_bad_spec_is_refused_with_pointer_value_and_remedy(
    client: httpx2.AsyncClient, changes: dict[str, Any], code: str, pointer: str, told: str
) -> None:
    for address in (SWEEPS, f"{SWEEPS}/validate", f"{SWEEPS}/estimate"):
        problems = assert_problem(await client.post(address, json=sweep_document(**changes)), 422, code)
        assert [problem["pointer"] for problem in problems["errors"]] == [pointer]
        assert told in problems["errors"][0]["detail"]
    assert (await client.get(SWEEPS)).json()["sweeps"] == []


async def test_a_job_from_a_configuration_is_the_one_of_that_moment(client: httpx2.AsyncClient) -> None:
    place = "/api/v1/configurations/digits"
    await client.put(place, json=JOB)
    await client.put(place, json={**JOB, "seed": 5, "optimizer": {"lr": 0.5}})
    sweep = await created(client, job={"from": "digits"})
    assert sweep["configuration"] == {"name": "digits", "version": 2}
    assert (sweep["spec"]["job"]["seed"], sweep["spec"]["job"]["optimizer"]["lr"]) == (5, 0.5)
    await client.delete(place)
    assert (await client.get(f"{SWEEPS}/{sweep['id']}")).json() == sweep
    assert (await created(client))["configuration"] is None


async def test_a_sweep_begins_from_others_over_the_same_metric_only(client: httpx2.AsyncClient) -> None:
    other = await created(client, metric="eval.loss", mode="min")
    same = await created(client)
    assert (await created(client, warm_start=[same["id"]]))["spec"]["warm_start"] == [same["id"]]
    answer = await client.post(SWEEPS, json=sweep_document(warm_start=[same["id"], other["id"]]))
    problem = assert_problem(answer, 422, "INVALID")["errors"][0]
    assert problem["pointer"] == "/warm_start/1"
    assert "was over 'eval.loss', this sweep is over 'eval.accuracy'" in problem["detail"]


async def test_lists_come_in_pages_newest_first_and_by_state_and_name(client: httpx2.AsyncClient) -> None:
    names = [f"s-{n}" for n in range(5)]
    ids = {name: (await created(client, name=name))["id"] for name in names}
    await client.post(f"{SWEEPS}/{ids['s-1']}/pause")
    first = await client.get(SWEEPS, params={"page_size": 3})
    SweepList.model_validate(first.json())
    rest = await client.get(SWEEPS, params={"page_size": 3, "page_token": first.json()["next_page_token"]})
    assert [each["name"] for page in (first, rest) for each in page.json()["sweeps"]] == names[::-1]
    assert rest.json()["next_page_token"] is None
    for params, found in (({"state": "PAUSED"}, ["s-1"]), ({"search": "-3"}, ["s-3"]), ({"search": "%"}, [])):
        assert [each["name"] for each in (await client.get(SWEEPS, params=params)).json()["sweeps"]] == found
    assert_problem(await client.get(SWEEPS, params={"state": "GONE"}), 400, "BAD_REQUEST")


async def test_trials_are_told_with_their_values_and_the_best_one(client: httpx2.AsyncClient, swept: Swept) -> None:
    await swept.play()
    sweep = (await client.get(f"{SWEEPS}/{swept.id}")).json()
    assert sweep["trials"] == {"total": 8, "waiting": 4, "running": 0, "complete": 2, "pruned": 1, "failed": 1}
    best = sweep["best"]
    assert (best["trial"], best["value"], best["params"]["batch.global_size"]) == (1, 0.95, 64)
    listed = (await client.get(f"{SWEEPS}/{swept.id}/trials", params={"page_size": 3})).json()
    SweepTrials.model_validate(listed)
    following = {"page_token": listed["next_page_token"], "page_size": 3}
    listed["trials"] += (await client.get(f"{SWEEPS}/{swept.id}/trials", params=following)).json()["trials"]
    told = [(t["state"], t["value"], t["last_value"], t["samples"]) for t in listed["trials"]]
    assert told == [
        ("COMPLETE", 0.8, 0.8, 3200),
        ("COMPLETE", 0.95, 0.95, 3200),
        ("FAILED", None, None, 0),
        ("WAITING", None, 0.3, 320),
        ("PRUNED", None, 0.1, 320),
    ]
    assert "lr is too much" in listed["trials"][2]["reason"]
    failed = (await client.get(f"{SWEEPS}/{swept.id}/trials", params={"state": "FAILED"})).json()["trials"]
    assert [trial["number"] for trial in failed] == [2]
    job = (await client.get(f"/api/v1/jobs/{best['job_id']}")).json()
    assert job["spec"]["labels"] == {"sweep": swept.id, "trial": "1"}


async def test_a_pause_holds_all_trials_and_a_stop_ends_them(client: httpx2.AsyncClient, swept: Swept) -> None:
    place = f"{SWEEPS}/{swept.id}"
    tag = (await client.get(place)).json()["etag"]
    paused = await client.post(f"{place}/pause", headers={"If-Match": tag})
    assert (paused.json()["state"], paused.json()["reason"]) == ("PAUSED", "paused by hand")
    assert (await client.post(f"{place}/pause")).json() == paused.json()
    assert_problem(await client.post(f"{place}/resume", headers={"If-Match": tag}), 412, "PRECONDITION_FAILED")
    assert (await client.post(f"{place}/resume")).json()["state"] == "RUNNING"
    await swept.play()
    stopped = await client.post(f"{place}/stop")
    assert (stopped.json()["state"], stopped.json()["trials"]["total"]) == ("STOPPED", 5)
    assert (await client.post(f"{place}/stop")).status_code == 200
    for verb in ("pause", "resume"):
        assert "extend it" in assert_problem(await client.post(f"{place}/{verb}"), 409, "ILLEGAL_TRANSITION")["detail"]
    # The trial that waits is not ended yet: what is to go on is not known before.
    assert_problem(await client.post(f"{place}/retry-failed"), 409, "CONFLICT")
    await swept.look()
    await swept.look()
    assert (await client.get(place)).json()["trials"]["pruned"] == 2


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


async def test_a_promotion_is_asked_for_told_and_stopped(client: httpx2.AsyncClient, swept: Swept) -> None:
    place = f"{SWEEPS}/{swept.id}"
    for body, told in (
        ({}, "the sweep names none: give {configuration: NAME}"),
        ({"configuration": "digits"}, "there is no configuration 'digits' to compare with"),
        ({"configuration": "No_Name"}, "(seen: 'No_Name')"),
    ):
        answer = await client.post(f"{place}/promote", json=body)
        refused = assert_problem(answer, 422, "INVALID")["errors"][0]
        assert (refused["pointer"], told in refused["detail"]) == ("/configuration", True)
    for name in ("digits", "other"):
        await client.put(f"/api/v1/configurations/{name}", json=JOB)
    # A bad body is refused as that, also where the version is not the one meant.
    other_version = {"If-Match": '"v99.1"'}
    bad = await client.post(f"{place}/promote", json={"configuration": 3}, headers=other_version)
    assert_problem(bad, 422, "INVALID")
    asked = await client.post(f"{place}/promote", json={"configuration": "digits"})
    Sweep.model_validate(asked.json())
    assert (asked.json()["promotion"]["state"], asked.json()["promotion"]["configuration"]) == ("WAITING", "digits")
    assert (await client.post(f"{place}/promote", json={"configuration": "digits"})).json() == asked.json()
    stopped = await client.post(f"{place}/stop")
    assert (stopped.json()["state"], stopped.json()["promotion"]) == ("STOPPED", None)
    wanted = {"configuration": "digits"}
    assert (
        "no trial is complete"
        in assert_problem(await client.post(f"{place}/promote", json=wanted), 409, "CONFLICT")["detail"]
    )


async def test_a_promotion_that_goes_on_is_told_and_stopped_without_its_sweep(
    client: httpx2.AsyncClient, swept: Swept
) -> None:
    place, wanted = f"{SWEEPS}/{swept.id}", {"configuration": "digits"}
    for name in ("digits", "other"):
        await client.put(f"/api/v1/configurations/{name}", json=JOB)
    await swept.play()
    await swept.finish()
    assert (await client.post(f"{place}/promote", json=wanted)).status_code == 200
    await swept.compare()
    told = (await client.get(place)).json()
    promotion = Sweep.model_validate(told).promotion
    assert promotion is not None
    assert (promotion.state, promotion.base_version, promotion.runs.started) == ("RUNNING", 1, 2)
    assert [finalist.trial for finalist in promotion.finalists] == [1, 0]
    assert (await client.post(f"{place}/promote", json=wanted)).json() == told
    other = await client.post(f"{place}/promote", json={"configuration": "other"})
    assert "being held against 'digits'; stop that first" in assert_problem(other, 409, "CONFLICT")["detail"]
    stopped = (await client.post(f"{place}/stop")).json()
    assert (stopped["state"], stopped["promotion"]["state"]) == ("SUCCEEDED", "STOPPED")
    assert (await client.post(f"{place}/stop")).json() == stopped
    assert_problem(await client.post(f"{place}/resume"), 409, "ILLEGAL_TRANSITION")
    assert (await client.post(f"{place}/promote", json=wanted)).json()["promotion"]["state"] == "WAITING"


async def test_a_promotion_that_is_stopped_before_it_began_stays_stopped(
    client: httpx2.AsyncClient, swept: Swept
) -> None:
    place, wanted = f"{SWEEPS}/{swept.id}", {"configuration": "digits"}
    await client.put("/api/v1/configurations/digits", json=JOB)
    await swept.play()
    await swept.finish()
    assert (await client.post(f"{place}/promote", json=wanted)).json()["promotion"]["state"] == "WAITING"
    stopped = (await client.post(f"{place}/stop")).json()
    promotion = Sweep.model_validate(stopped).promotion
    assert promotion is not None
    assert (promotion.state, promotion.reason, promotion.runs.started) == ("STOPPED", "stopped by hand", 0)
    assert (await client.post(f"{place}/stop")).json() == stopped
    assert (await client.post(f"{place}/promote", json=wanted)).json()["promotion"]["state"] == "WAITING"


async def test_the_report_tells_what_was_found_what_it_cost_and_that_it_flatters(
    client: httpx2.AsyncClient, swept: Swept
) -> None:
    await swept.play()
    await swept.order(optimizer__lr=0.7, batch__global_size=0.3)
    report = (await client.get(f"{SWEEPS}/{swept.id}/report")).json()
    SweepReport.model_validate(report)
    assert [(p["trial"], p["best"]) for p in report["best_so_far"]] == [(0, 0.8), (1, 0.95), (2, 0.95), (4, 0.95)]
    better = report["improvements"]
    assert [(i["trial"], i["gain"] and round(i["gain"], 3)) for i in better] == [(0, None), (1, 0.15)]
    assert sum(i["worker_s"] for i in better) == report["best_so_far"][1]["worker_s"] > 0
    assert (report["best"]["trial"], report["best"]["value"]) == (1, 0.95)
    assert "luckiest of 2 results" in report["caution"]
    assert report["importance"] == {"optimizer.lr": 0.7, "batch.global_size": 0.3}
    assert [(p["lr"], p["global_batch"], p["value"]) for p in report["lr_batch"]] == [
        (0.001, 32, 0.8),
        (0.01, 64, 0.95),
        (0.1, 32, None),
        (0.0001, 32, 0.1),
    ]
    assert report["rungs"] == [
        {"samples": 320, "reached": 4, "waiting": 1, "pruned": 1, "best": 0.475},
        {"samples": 960, "reached": 2, "waiting": 0, "pruned": 0, "best": 0.95},
        {"samples": 2880, "reached": 2, "waiting": 0, "pruned": 0, "best": 0.95},
    ]


async def test_reports_that_are_no_numbers_are_told_as_no_values(client: httpx2.AsyncClient, swept: Swept) -> None:
    await swept.begin(point(0.001), point(0.01))
    await swept.report(0, r10=math.nan)
    await swept.report(1, r10=0.2, r100=math.nan)
    await swept.end(1)
    trials = (await client.get(f"{SWEEPS}/{swept.id}/trials")).json()["trials"]
    assert [(t["state"], t["value"], t["last_value"]) for t in trials] == [
        ("RUNNING", None, None),
        ("PRUNED", None, None),
    ]
    report = (await client.get(f"{SWEEPS}/{swept.id}/report")).json()
    SweepReport.model_validate(report)
    assert [p["value"] for p in report["lr_batch"]] == [None]
    assert [(rung["reached"], rung["best"]) for rung in report["rungs"]] == [(2, 0.2), (1, None), (1, None)]
    assert (await client.get(f"/sweeps/{swept.id}")).status_code == 200
    assert (await client.get(f"/api/v1/jobs/{(await swept.job(0)).id}/metrics")).status_code == 200


@pytest.mark.parametrize(
    "changes", [{"pruner": "none"}, {"job": {**JOB, "samples": None, "epochs": 2}}], ids=["no pruner", "epochs unknown"]
)
async def test_a_sweep_that_compares_trials_nowhere_has_a_report_without_rungs(
    client: httpx2.AsyncClient, swept: Swept, changes: dict[str, Any]
) -> None:
    sweep = await swept.created(swept.store, swept.clock, swept.fence, **changes)
    answer = await client.get(f"{SWEEPS}/{sweep.id}/report")
    assert answer.status_code == 200, answer.text
    assert answer.json()["rungs"] == []


async def test_an_estimate_rests_on_what_earlier_jobs_of_the_code_did(client: httpx2.AsyncClient, swept: Swept) -> None:
    by_samples = (await client.post(f"{SWEEPS}/estimate", json=sweep_document())).json()
    SweepEstimate.model_validate(by_samples)
    assert (by_samples["trials"], by_samples["samples"]["high"], by_samples["worker_s"]) == (8, 8 * 3200, None)
    job = {**JOB, "samples": None, "epochs": 2}
    unknown = (await client.post(f"{SWEEPS}/estimate", json=sweep_document(job=job))).json()
    assert unknown["samples"] is None
    assert "the size of an epoch is not known" in unknown["notes"][1]
    fence = swept.fence
    earlier = await swept.created(
        swept.store, swept.clock, fence, job=job, space={"optimizer.lr": {"choice": [0.01, 0.02]}}
    )
    await earlier.begin({"optimizer.lr": 0.01})
    await earlier.complete(0, 0.9)
    known = (await client.post(f"{SWEEPS}/estimate", json=sweep_document(job=job))).json()
    assert known["samples"]["high"] == 8 * 3200
    assert known["worker_s"]["high"] > known["worker_s"]["low"] > 0
    assert known["amount"] is None
    assert "an epoch is taken to have 1,600 samples" in known["notes"][1]


async def test_an_estimate_counts_what_is_drawn_where_a_large_batch_is_worth_less(
    client: httpx2.AsyncClient, swept: Swept
) -> None:
    space, large = {"optimizer.lr": {"choice": [0.01, 0.02]}}, {"global_size": 320, "lr_rule": "adascale"}
    job = {**JOB, "batch": large, "optimizer": {"base_batch": 32}}
    document = sweep_document(job=job, space=space, pruner="none")
    told = (await client.post(f"{SWEEPS}/estimate", json=document)).json()
    assert told["samples"] == {"low": 2 * 3200, "high": 2 * 10 * 3200}
    assert any("up to 10 times as many samples are drawn" in note for note in told["notes"])
    earlier = await swept.created(swept.store, swept.clock, swept.fence, **{**document, "name": "earlier"})
    await earlier.begin({"optimizer.lr": 0.01})
    # Of each 320 samples drawn 32 count, and that takes ten seconds.
    first = replace(record(1, eval__accuracy=0.5), time=swept.clock.now_s)
    await swept.store.reconciler.fold(snapshot(await earlier.job(0), [first]), swept.fence)
    told_as = [replace(record(n, eval__accuracy=0.6), samples=320) for n in (2, 3, 4)]
    swept.clock.now_s += 40
    await swept.store.reconciler.fold(snapshot(await earlier.job(0), told_as), swept.fence)
    assert (await earlier.job(0)).worker_s == 40.0
    worker_s = (await client.post(f"{SWEEPS}/estimate", json=document)).json()["worker_s"]
    # At 32 drawn samples a second.
    assert worker_s == {"low": 200.0, "high": 2000.0}


async def test_an_estimate_counts_the_runs_of_a_promotion(client: httpx2.AsyncClient) -> None:
    await client.put("/api/v1/configurations/digits", json=JOB)
    told = (await client.post(f"{SWEEPS}/estimate", json=sweep_document(promote="digits"))).json()
    SweepEstimate.model_validate(told)
    assert told["promotion_samples"] == {"low": 20 * 3200, "high": 80 * 3200}
    assert told["samples"]["high"] == (8 + 80) * 3200
    assert "promoting to digits trains 20 to 80 times more" in told["notes"][-1]


async def test_money_is_told_where_the_settings_have_prices(running_app: Any, settings: Settings) -> None:
    async with running_app(settings.model_copy(update={"price_cpu_hour": 3600.0})) as client:
        limited = await client.post(SWEEPS, json=sweep_document(limits={"cost": 1}))
        assert limited.status_code == 201
        report = (await client.get(f"{SWEEPS}/{limited.json()['id']}/report")).json()
        assert report["cost"] == {"worker_s": 0.0, "amount": 0.0, "currency": "EUR"}
