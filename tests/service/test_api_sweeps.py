"""``/sweeps`` over HTTP: shapes, headers, refusals, and what becomes of trials."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from service.api.sweep_shapes import Sweep, SweepList, SweepTrials
from service.promotion_records import INCUMBENT
from tests.service.swept import JOB, SWEEPS, Swept, created, sweep_document
from tests.service.test_api_jobs import assert_problem

pytestmark = pytest.mark.anyio


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
    assert [finalist.trial for finalist in promotion.finalists] == [1, 0, 3]
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


async def test_a_winner_would_undo_a_later_version_unless_its_own_sweep_put_that(
    client: httpx2.AsyncClient, swept: Swept
) -> None:
    for name in ("digits", "other"):
        await client.put(f"/api/v1/configurations/{name}", json=JOB)
    made = await created(client, job={"from": "digits"}, promote="digits")
    later = Swept(swept.store, swept.clock, swept.fence, made["id"])
    place, wanted = f"{SWEEPS}/{later.id}", {"configuration": "digits"}
    await later.play()
    await later.finish()
    await later.conclude(lambda contender: 0.8 if contender == INCUMBENT else 0.9)
    assert (await client.get(place)).json()["promotion"]["version"] == 2
    await client.post(f"{place}/extend", json={"trials": 20})
    await later.finish()
    await later.compare()
    promotion = (await client.get(place)).json()["promotion"]
    assert (promotion["number"], promotion["state"], promotion["base_version"]) == (2, "RUNNING", 2)
    await client.post(f"{place}/stop")
    await client.put("/api/v1/configurations/digits", json={**JOB, "env": {"FIX": "1"}})
    refused = assert_problem(await client.post(f"{place}/promote", json=wanted), 409, "CONFLICT")["detail"]
    assert "digits is at version 3, the sweep began from version 1" in refused
    assert f"warm_start: [{later.id}]" in refused
    assert (await client.post(f"{place}/promote", json={"configuration": "other"})).status_code == 200
