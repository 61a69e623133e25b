"""Commands, sizes and deletion over HTTP."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from service.api.shapes import Events
from service.folders import job_place
from service.records import Transition
from service.services import Services
from service.settings import Settings
from service.states import JobState
from tests.service.given import checkpoint
from tests.service.test_api_jobs import JOBS, assert_problem, running, submitted

pytestmark = pytest.mark.anyio


async def test_commands_move_a_job_and_may_be_repeated(client: httpx2.AsyncClient) -> None:
    job = await submitted(client)
    path = f"{JOBS}/{job['id']}"

    async def state_after(verb: str, **params: str) -> str:
        answer = await client.post(f"{path}/{verb}", params=params)
        assert answer.status_code == 200, answer.text
        assert answer.headers["etag"] == answer.json()["etag"]
        return str(answer.json()["state"])

    for _ in range(2):
        assert await state_after("pause") == "PAUSED"
    for _ in range(2):
        assert await state_after("resume") == "QUEUED"
    for _ in range(2):
        assert await state_after("cancel") == "CANCELLED"
    assert_problem(await client.post(f"{path}/pause"), 409, "ILLEGAL_TRANSITION")
    assert await state_after("retry", **{"from": "start"}) == "QUEUED"
    assert_problem(await client.post(f"{path}/retry", params={"from": "middle"}), 422, "INVALID")
    events = (await client.get(f"{path}/events")).json()
    Events.model_validate(events)
    moves = [(e["from"], e["to"], e["reason"]) for e in events["events"]]
    assert moves == [
        (None, "QUEUED", None),
        ("QUEUED", "PAUSED", None),
        ("PAUSED", "QUEUED", None),
        ("QUEUED", "CANCELLED", "CANCELLED_BY_USER"),
        ("CANCELLED", "QUEUED", None),
    ]
    assert [e["seq"] for e in (await client.get(f"{path}/events", params={"after": 3})).json()["events"]] == [4, 5]


async def test_a_job_that_goes_on_from_its_checkpoint_is_not_told_to_begin_anew_in_vain(
    client: httpx2.AsyncClient, services: Services
) -> None:
    job_id, fence = await running(client, services)
    path, row = f"{JOBS}/{job_id}", await services.store.reconciler.job(job_id)
    assert row is not None
    await services.store.reconciler.register_checkpoints(job_id, [checkpoint(10)], fence)
    await services.store.reconciler.transition(row, JobState.FAILED, Transition(), fence)
    assert (await client.post(f"{path}/retry")).json()["state"] == "QUEUED"
    anew = {"from": "start"}
    problem = assert_problem(await client.post(f"{path}/retry", params=anew), 409, "ILLEGAL_TRANSITION")
    assert "cancel it" in problem["detail"]
    assert (await client.post(f"{path}/cancel")).json()["state"] == "CANCELLED"
    for _ in range(2):
        assert (await client.post(f"{path}/retry", params=anew)).json()["state"] == "QUEUED"


async def test_a_job_that_begins_anew_and_has_to_wait_for_its_place_may_be_told_so_again(
    client: httpx2.AsyncClient, services: Services
) -> None:
    job_id, fence = await running(client, services)
    path, anew, store = f"{JOBS}/{job_id}", {"from": "start"}, services.store.reconciler
    await store.register_checkpoints(job_id, [checkpoint(10)], fence)
    row = await store.job(job_id)
    assert row is not None
    await store.transition(row, JobState.FAILED, Transition(), fence)
    assert (await client.post(f"{path}/retry", params=anew)).json()["state"] == "QUEUED"
    row = await store.job(job_id)
    assert row is not None
    await store.transition(await store.admit(row, 1, fence), JobState.QUEUED, Transition(), fence)
    answer = await client.post(f"{path}/retry", params=anew)
    assert (answer.status_code, answer.json()["attempt"]) == (200, 2)
    await store.register_checkpoints(job_id, [checkpoint(10), checkpoint(5, attempt=2)], fence)
    assert_problem(await client.post(f"{path}/retry", params=anew), 409, "ILLEGAL_TRANSITION")


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel", "retry"])
async def test_a_command_takes_no_body_and_ignores_none(client: httpx2.AsyncClient, verb: str) -> None:
    job = await submitted(client)
    path = f"{JOBS}/{job['id']}"
    for body in ({"from": "start"}, [], "now"):
        problem = assert_problem(await client.post(f"{path}/{verb}", json=body), 422, "INVALID")
        assert "send no body" in problem["errors"][0]["detail"]
    assert_problem(await client.post(f"{path}/{verb}", content=b"{"), 400, "BAD_REQUEST")
    assert (await client.get(path)).json() == job
    assert (await client.post(f"{path}/cancel", json={})).json()["state"] == "CANCELLED"


async def test_a_running_job_is_paused_and_cancelled_on_its_way(client: httpx2.AsyncClient, services: Services) -> None:
    job_id, _ = await running(client, services)
    assert (await client.post(f"{JOBS}/{job_id}/pause")).json()["state"] == "PAUSING"
    assert_problem(await client.post(f"{JOBS}/{job_id}/resume"), 409, "ILLEGAL_TRANSITION")
    cancelled = (await client.post(f"{JOBS}/{job_id}/cancel")).json()
    assert (cancelled["state"], cancelled["reason"]) == ("CANCELLING", "CANCELLED_BY_USER")
    assert_problem(await client.delete(f"{JOBS}/{job_id}"), 409, "CONFLICT")
    assert_problem(await client.put(f"{JOBS}/{job_id}/scale", json={"workers": 1}), 409, "ILLEGAL_TRANSITION")


async def test_a_number_pins_the_size_until_a_range_or_auto_frees_it(client: httpx2.AsyncClient) -> None:
    job = await submitted(client)
    path = f"{JOBS}/{job['id']}/scale"

    async def workers(wanted: object) -> dict[str, int]:
        answer = await client.put(path, json={"workers": wanted, "reason": "why not"})
        assert answer.status_code == 200, answer.text
        found: dict[str, int] = answer.json()["workers"]
        return found

    assert await workers(3) == {"min": 1, "max": 4, "current": 0, "desired": 3}
    assert await workers({"min": 2, "max": 3}) == {"min": 2, "max": 3, "current": 0, "desired": 2}
    assert await workers(3) == {"min": 2, "max": 3, "current": 0, "desired": 3}
    assert await workers(2.0) == {"min": 2, "max": 3, "current": 0, "desired": 2}
    assert await workers({"min": 1.0, "max": 3}) == {"min": 1, "max": 3, "current": 0, "desired": 1}
    assert await workers("auto") == {"min": 1, "max": 4, "current": 0, "desired": 1}


BAD_SIZES = [
    ({"workers": 5}, "/workers"),
    ({"workers": 0}, "/workers"),
    ({"workers": True}, "/workers"),
    ({"workers": 1.5}, "/workers"),
    ({"workers": "many"}, "/workers"),
    ({"workers": None}, "/workers"),
    ({"workers": {"min": 3, "max": 2}}, "/workers/min"),
    ({"workers": {"min": 1}}, "/workers/max"),
    ({"workers": {"min": 2, "max": 5}}, "/workers/max"),
    ({"workers": {"min": 33, "max": 64}}, "/workers/min"),
    ({"workers": {"min": 1, "max": 2, "mx": 3}}, "/workers/mx"),
    ({"worker": 2}, "/worker"),
    ({"workers": 2, "reason": 5}, "/reason"),
    ({"workers": 2, "reason": "x" * 501}, "/reason"),
    ({}, "/workers"),
    ([], ""),
]


async def test_a_bad_size_is_refused_and_changes_nothing(subtests: pytest.Subtests, client: httpx2.AsyncClient) -> None:
    for body, pointer in BAD_SIZES:
        with subtests.test(body=repr(body)[:80]):
            job = await submitted(client)
            for headers in ({}, {"If-Match": '"of-long-ago"'}):
                answer = await client.put(f"{JOBS}/{job['id']}/scale", json=body, headers=headers)
                assert assert_problem(answer, 422, "INVALID")["errors"][0]["pointer"] == pointer
            assert (await client.get(f"{JOBS}/{job['id']}")).json() == job


async def test_a_size_that_the_batch_cannot_feed_is_refused(client: httpx2.AsyncClient) -> None:
    job = await submitted(client, batch={"global_size": 4}, workers={"min": 1, "max": 8})
    for wish, pointer in ((5, "/workers"), ({"min": 5, "max": 8}, "/workers/min")):
        answer = await client.put(f"{JOBS}/{job['id']}/scale", json={"workers": wish})
        [problem] = assert_problem(answer, 422, "INVALID")["errors"]
        assert problem["pointer"] == pointer
        assert "5 workers cannot share a batch of 4 samples; use at most 4" in problem["detail"]


async def test_a_range_outside_the_specs_is_refused_with_what_is_allowed(client: httpx2.AsyncClient) -> None:
    job = await submitted(client, workers={"min": 2, "max": 4})
    for wish, pointer in (({"min": 1, "max": 4}, "/workers/min"), ({"min": 2, "max": 9}, "/workers/max")):
        answer = await client.put(f"{JOBS}/{job['id']}/scale", json={"workers": wish})
        [problem] = assert_problem(answer, 422, "INVALID")["errors"]
        assert problem["pointer"] == pointer
        assert "outside the range 2 to 4" in problem["detail"]


async def test_wishing_for_the_same_again_changes_nothing(client: httpx2.AsyncClient) -> None:
    job = await submitted(client)
    tags = [
        (await client.put(f"{JOBS}/{job['id']}/scale", json={"workers": 2, "reason": "r"})).json()["etag"]
        for _ in range(2)
    ]
    assert tags[0] == tags[1] != job["etag"]


async def test_deleting_takes_a_job_with_its_files(client: httpx2.AsyncClient, settings: Settings) -> None:
    job = await submitted(client)
    folder = Path(job_place(settings.storage_url, job["id"]))
    (folder / "output").mkdir(parents=True)
    (folder / "output" / "a.txt").write_text("a")
    assert_problem(await client.delete(f"{JOBS}/{job['id']}"), 409, "CONFLICT")
    assert folder.is_dir()
    await client.post(f"{JOBS}/{job['id']}/cancel")
    answer = await client.delete(f"{JOBS}/{job['id']}")
    assert (answer.status_code, answer.content) == (204, b"")
    assert not Path(folder).exists()
    assert_problem(await client.get(f"{JOBS}/{job['id']}"), 404, "NOT_FOUND")
    assert_problem(await client.delete(f"{JOBS}/{job['id']}"), 404, "NOT_FOUND")
