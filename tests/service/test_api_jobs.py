"""``/jobs`` over HTTP: shapes, headers, refusals."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.api.shapes import Job, JobList
from service.records import Transition
from service.services import Services
from service.settings import Settings
from service.states import JobState
from tests.service.given import BATCH, Clock, leader, record, snapshot, spec_document, view

pytestmark = pytest.mark.anyio

JOBS = "/api/v1/jobs"


async def submitted(client: httpx2.AsyncClient, **changes: Any) -> dict[str, Any]:
    answer = await client.post(JOBS, json=spec_document(**changes))
    assert answer.status_code == 201, answer.text
    job: dict[str, Any] = answer.json()
    return job


async def running(client: httpx2.AsyncClient, services: Services, **changes: Any) -> tuple[str, int]:
    """A job that is RUNNING, and the fencing number of the leader."""
    made = await submitted(client, **changes)
    fence = await leader(services.store)
    job = await services.store.reconciler.job(made["id"])
    assert job is not None
    started = await services.store.reconciler.admit(job, 1, fence)
    await services.store.reconciler.transition(started, JobState.RUNNING, Transition(), fence)
    return made["id"], fence


def assert_problem(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert set(document) == {"type", "title", "status", "detail", "code", "errors", "request_id"}
    assert (document["status"], document["code"]) == (status, code)
    assert document["request_id"] == answer.headers["x-request-id"]
    assert "Traceback" not in answer.text
    return document


async def test_a_new_job_is_answered_whole_with_its_place_and_tag(client: httpx2.AsyncClient) -> None:
    answer = await client.post(JOBS, json=spec_document())
    assert answer.status_code == 201
    job = answer.json()
    Job.model_validate(job)
    assert " ".join(job) == (
        "id name state reason spec progress workers racks attempt created_at started_at finished_at cost etag"
    )
    assert answer.headers["location"] == f"{JOBS}/{job['id']}"
    assert answer.headers["etag"] == job["etag"]
    assert (job["state"], job["reason"], job["attempt"]) == ("QUEUED", None, 0)
    assert job["workers"] == {"min": 1, "max": 4, "current": 0, "desired": 1}
    assert job["cost"] == {"worker_s": 0.0, "amount": None, "currency": "EUR", "is_upper_bound": False}
    assert job["progress"] == {
        "step": 0,
        "steps": 100,
        "samples": 0,
        "loss": None,
        "eval": {},
        "samples_per_s": None,
        "eta_s": None,
    }
    assert job["created_at"].endswith("Z")
    assert (await client.get(answer.headers["location"])).json() == job


async def test_the_time_left_is_that_of_samples_that_count(client: httpx2.AsyncClient, services: Services) -> None:
    job_id, fence = await running(client, services, epochs=2, steps=None)
    row = await services.store.reconciler.job(job_id)
    assert row is not None
    records = [replace(record(r, samples_per_s=64.0), cursor=r * BATCH // 4) for r in range(1, 11)]
    await services.store.reconciler.fold(snapshot(row, records, total_samples=1010), fence)
    progress = (await client.get(f"{JOBS}/{job_id}")).json()["progress"]
    assert (progress["samples"], progress["samples_per_s"]) == (80, 64.0)
    assert progress["eta_s"] == pytest.approx((1010 - 80) / (64 / 4), abs=0.01)


async def test_progress_follows_what_the_workers_told(
    client: httpx2.AsyncClient, services: Services, clock: Clock
) -> None:
    job_id, fence = await running(client, services, epochs=2, steps=None)
    row = await services.store.reconciler.job(job_id)
    assert row is not None
    assert (await client.get(f"{JOBS}/{job_id}")).json()["progress"]["steps"] is None
    records = [record(r, samples_per_s=64.0, eval__accuracy=0.5) for r in range(1, 11)]
    told = snapshot(row, records, total_samples=1010, num_current=2, workers=(view(), view("1.1", 1)))
    await services.store.reconciler.fold(told, fence)
    clock.advance(30)
    await services.store.reconciler.fold(told, fence)
    job = (await client.get(f"{JOBS}/{job_id}")).json()
    assert job["progress"] == {
        "step": 10,
        "steps": 32,
        "samples": 10 * BATCH,
        "loss": pytest.approx(0.1),
        "eval": {"accuracy": 0.5},
        "samples_per_s": 64.0,
        "eta_s": pytest.approx((1010 - 320) / 64, abs=0.01),
    }
    assert job["workers"]["current"] == 2
    assert job["cost"]["worker_s"] == 60.0
    await services.store.reconciler.fold(snapshot(row, [record(32)], total_samples=1010, cursor=1010), fence)
    progress = (await client.get(f"{JOBS}/{job_id}")).json()["progress"]
    assert (progress["step"], progress["eta_s"]) == (32, 0)


async def test_prices_make_an_amount(settings: Settings, running_app: Any) -> None:
    priced = settings.model_copy(update={"price_cpu_hour": 3.6, "currency": "USD"})
    async with running_app(priced) as caller:
        cost = (await submitted(caller))["cost"]
    assert cost == {"worker_s": 0.0, "amount": 0.0, "currency": "USD", "is_upper_bound": False}


async def test_an_unchanged_job_is_not_sent_again(client: httpx2.AsyncClient) -> None:
    job = await submitted(client)
    answer = await client.get(f"{JOBS}/{job['id']}", headers={"If-None-Match": job["etag"]})
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", job["etag"])
    await client.post(f"{JOBS}/{job['id']}/pause")
    answer = await client.get(f"{JOBS}/{job['id']}", headers={"If-None-Match": job["etag"]})
    assert answer.status_code == 200
    assert answer.headers["etag"] != job["etag"]


async def test_if_match_guards_intent_and_not_progress(client: httpx2.AsyncClient, services: Services) -> None:
    job_id, fence = await running(client, services)
    seen = (await client.get(f"{JOBS}/{job_id}")).headers["etag"]
    row = await services.store.reconciler.job(job_id)
    assert row is not None
    await services.store.reconciler.fold(snapshot(row, [record(1)]), fence)
    answer = await client.put(f"{JOBS}/{job_id}/scale", json={"workers": 2}, headers={"If-Match": seen})
    assert answer.status_code == 200
    again = await client.put(f"{JOBS}/{job_id}/scale", json={"workers": 3}, headers={"If-Match": seen})
    assert_problem(again, 412, "PRECONDITION_FAILED")
    assert (await client.get(f"{JOBS}/{job_id}")).json()["workers"]["desired"] == 2
    assert (await client.post(f"{JOBS}/{job_id}/cancel", headers={"If-Match": "*"})).status_code == 200


async def test_repeating_a_submission_finds_the_job(client: httpx2.AsyncClient) -> None:
    headers = {"Idempotency-Key": "4b1c"}
    first = await client.post(JOBS, json=spec_document(), headers=headers)
    # The same document with its keys in another order is the same body.
    other_order = dict(reversed(spec_document().items()))
    again = await client.post(JOBS, json=other_order, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert again.headers["location"] == first.headers["location"]
    other = await client.post(JOBS, json=spec_document(seed=1), headers=headers)
    assert_problem(other, 422, "IDEMPOTENCY_KEY_REUSED")
    assert len((await client.get(JOBS)).json()["jobs"]) == 1


MALFORMED_KEYS = ["", "x" * 256, "caf\u00e9".encode(), "a\tb"]


async def test_a_malformed_key_is_a_bad_request(subtests: pytest.Subtests, client: httpx2.AsyncClient) -> None:
    for key in MALFORMED_KEYS:
        with subtests.test(key=repr(key)[:80]):
            answer = await client.post(JOBS, json=spec_document(), headers={"Idempotency-Key": key})
            assert_problem(answer, 400, "BAD_REQUEST")


async def test_twenty_calls_at_once_with_one_key_make_one_job(client: httpx2.AsyncClient) -> None:
    calls = [client.post(JOBS, json=spec_document(), headers={"Idempotency-Key": "race"}) for _ in range(20)]
    answers = await asyncio.gather(*calls)
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1


BAD_SPECS = [
    (spec_document(stepz=1), "/stepz", "INVALID"),
    (spec_document(samples=5), "/samples", "INVALID"),
    (spec_document(name="Bad Name"), "/name", "INVALID"),
    (spec_document(batch={"global_size": 0}), "/batch/global_size", "INVALID"),
    (spec_document(bundle="bundle_none", entrypoint="a:b"), "/bundle", "INVALID"),
    (spec_document(init_from={"job": "job_none"}), "/init_from/job", "INVALID"),
    (spec_document(compile=True), "/compile", "NOT_AVAILABLE"),
    (spec_document(labels={"a\u0000": "b"}), "/labels", "INVALID"),
    ([], "", "INVALID"),
    ("text", "", "INVALID"),
    (None, "", "INVALID"),
]


async def test_a_bad_spec_is_refused_with_its_field_and_stores_nothing(
    subtests: pytest.Subtests, client: httpx2.AsyncClient
) -> None:
    for document, pointer, code in BAD_SPECS:
        with subtests.test(document=repr(document)[:80]):
            answer = await client.post(JOBS, content=json.dumps(document))
            problem = assert_problem(answer, 422, code)
            assert pointer in [error["pointer"] for error in problem["errors"]]
            assert (await client.get(JOBS)).json()["jobs"] == []


NO_JSON = [
    b"",
    b"{",
    b"\xff\xfe",
    b'{"a": NaN}',
    b"[" * 100_000,
    b'{"seed": ' + b"9" * 10_000 + b"}",
    b"[" * 200 + b"]" * 200,
    b"name: yaml",
]


async def test_what_is_no_json_is_a_bad_request(subtests: pytest.Subtests, client: httpx2.AsyncClient) -> None:
    for body in NO_JSON:
        with subtests.test(body=body[:20]):
            assert_problem(await client.post(JOBS, content=body), 400, "BAD_REQUEST")


async def test_half_a_character_is_refused_where_it_stands(client: httpx2.AsyncClient) -> None:
    answer = await client.post(JOBS, content=b'{"name": "a", "config": {"x": ["\\ud800"]}}')
    assert assert_problem(answer, 422, "INVALID")["errors"][0]["pointer"] == "/config/x/0"


async def test_another_content_type_is_refused(client: httpx2.AsyncClient) -> None:
    answer = await client.post(JOBS, content=b"name=a", headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert_problem(answer, 400, "BAD_REQUEST")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([*sorted(spec_document()), "labels", "config", "env", "dependencies", "precision", "optimizer"])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=st.dictionaries(KEYS, JSON, min_size=1, max_size=3))
async def test_no_spec_makes_the_service_stumble(client: httpx2.AsyncClient, changes: dict[str, Any]) -> None:
    answer = await client.post(f"{JOBS}/validate", json=spec_document(**changes))
    assert answer.status_code in (200, 422), answer.text
    if answer.status_code == 200:
        assert (await client.post(JOBS, json=answer.json())).status_code == 201


async def test_validation_resolves_and_stores_nothing(client: httpx2.AsyncClient) -> None:
    answer = await client.post(f"{JOBS}/validate", json=spec_document())
    assert answer.status_code == 200
    assert answer.json()["checkpoint"] == {"every_steps": 100, "keep": 2, "metric": None, "mode": "max"}
    assert_problem(await client.post(f"{JOBS}/validate", json={"name": "a"}), 422, "INVALID")
    assert (await client.get(JOBS)).json() == {"jobs": [], "next_page_token": None}


async def test_validation_refuses_what_submission_would(subtests: pytest.Subtests, client: httpx2.AsyncClient) -> None:
    for changes, pointer in (({"bundle": "bun_0"}, "/bundle"), ({"init_from": {"job": "job_0"}}, "/init_from/job")):
        with subtests.test(pointer=pointer):
            validated, submission = [
                assert_problem(await client.post(path, json=spec_document(**changes)), 422, "INVALID")["errors"]
                for path in (f"{JOBS}/validate", JOBS)
            ]
            assert validated == submission
            assert validated[0]["pointer"] == pointer


async def test_lists_are_cut_into_pages(client: httpx2.AsyncClient) -> None:
    ids = [(await submitted(client, name=f"job-{n}"))["id"] for n in range(5)]
    seen: list[str] = []
    token: str | None = None
    for _ in range(3):
        params = {"page_size": 2, **({"page_token": token} if token else {})}
        page = (await client.get(JOBS, params=params)).json()
        JobList.model_validate(page)
        seen += [job["id"] for job in page["jobs"]]
        token = page["next_page_token"]
    assert seen == ids[::-1]
    assert token is None
    assert len((await client.get(JOBS, params={"page_size": 10**6})).json()["jobs"]) == 5


async def test_a_page_of_large_jobs_is_shorter_and_has_a_token(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.store.list_parts.MAX_PAGE_BYTES", 50_000)
    ids = [(await submitted(client, config={"text": "x" * 30_000}))["id"] for _ in range(5)]
    seen: list[list[str]] = []
    params: dict[str, Any] = {"page_size": 4}
    while not seen or params["page_token"]:
        page = (await client.get(JOBS, params=params)).json()
        seen.append([job["id"] for job in page["jobs"]])
        params["page_token"] = page["next_page_token"]
    assert [len(page) for page in seen] == [2, 2, 1]
    assert [job_id for page in seen for job_id in page] == ids[::-1]


async def test_a_page_token_is_only_good_for_its_own_list(client: httpx2.AsyncClient) -> None:
    for _ in range(2):
        await submitted(client)
    token = (await client.get(JOBS, params={"page_size": 1})).json()["next_page_token"]
    other = await client.get(JOBS, params={"page_size": 1, "page_token": token, "state": "QUEUED"})
    assert_problem(other, 400, "BAD_REQUEST")
    for bad in (token[:-3] + "AAA", "x", "\u00e9", "A" * 60):
        assert_problem(await client.get(JOBS, params={"page_token": bad}), 400, "BAD_REQUEST")


async def test_lists_are_filtered(client: httpx2.AsyncClient) -> None:
    first = await submitted(client, name="one", labels={"team": "a:b=c"})
    second = await submitted(client, name="two")
    await client.post(f"{JOBS}/{second['id']}/cancel")

    async def ids(**params: Any) -> list[str]:
        return [job["id"] for job in (await client.get(JOBS, params=params)).json()["jobs"]]

    assert await ids(state="CANCELLED") == [second["id"]]
    assert await ids(state="CANCELLED,QUEUED") == [second["id"], first["id"]]
    assert await ids(state=["CANCELLED", "QUEUED"]) == [second["id"], first["id"]]
    assert await ids(label="team=a:b=c") == [first["id"]]
    assert await ids(name="one") == [first["id"]]
    assert await ids(search="wo") == [second["id"]]
    for params in ({"state": "GONE"}, {"label": "x"}, {"label": "=x"}, {"search": "\0"}):
        assert_problem(await client.get(JOBS, params=params), 400, "BAD_REQUEST")
    assert_problem(await client.get(JOBS, params={"page_size": "x"}), 422, "INVALID")
    assert_problem(await client.get(JOBS, params={"page_size": 0}), 422, "INVALID")


NO_JOBS = ["job_none", "job_" + "0" * 26, "%2e%2e", "job_01" + "%00" * 4, "a" * 5000]
PARTS = ["", "/metrics", "/timeline", "/events", "/logs", "/checkpoints", "/files", "/explain", "/report"]


async def test_a_job_that_is_not_there_is_not_found(subtests: pytest.Subtests, client: httpx2.AsyncClient) -> None:
    for job_id, part in itertools.product(NO_JOBS, PARTS):
        with subtests.test(job_id=job_id[:20], part=part):
            assert_problem(await client.get(f"{JOBS}/{job_id}{part}"), 404, "NOT_FOUND")


NOT_BUILT_YET = ["/configurations/a", "/queues", "/jobs/x/report"]


async def test_what_is_not_built_yet_is_not_there(subtests: pytest.Subtests, client: httpx2.AsyncClient) -> None:
    for path in NOT_BUILT_YET:
        with subtests.test(path=repr(path)[:80]):
            assert_problem(await client.get(f"/api/v1{path}"), 404, "NOT_FOUND")


async def test_a_method_that_is_not_answered_says_so(client: httpx2.AsyncClient) -> None:
    answer = await client.patch(JOBS, json={})
    assert_problem(answer, 405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "GET, POST"
