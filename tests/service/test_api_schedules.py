"""``/schedules`` over HTTP: shapes, headers, refusals."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from service.api.shapes import Schedule, ScheduleList, ScheduleRun, ScheduleRuns, UpcomingTimes
from service.feed import read_topics
from service.jobs import MAX_TRIES
from service.services import Services
from service.settings import Settings
from tests.service.given import Clock
from tests.service.scheduled import JOB, SWEEP, Firing, at, firing_at_seven, schedule_document
from tests.service.swept import JOB as SWEPT_JOB
from tests.service.swept import sweep_document
from tests.service.test_api_jobs import assert_problem

pytestmark = pytest.mark.anyio

SCHEDULES = "/api/v1/schedules"


async def created(client: httpx2.AsyncClient, **changes: Any) -> dict[str, Any]:
    answer = await client.post(SCHEDULES, json=schedule_document(**changes))
    assert answer.status_code == 201, answer.text
    schedule: dict[str, Any] = answer.json()
    return schedule


@pytest.fixture
async def firing(services: Services, clock: Clock) -> Firing:
    return await firing_at_seven(services.store, clock)


async def test_a_new_schedule_is_answered_whole_with_its_place_and_tag(
    client: httpx2.AsyncClient, firing: Firing
) -> None:
    answer = await client.post(SCHEDULES, json=schedule_document(cron=" 30  2 * * 1-5", time_zone="Europe/Berlin"))
    assert answer.status_code == 201
    schedule = answer.json()
    Schedule.model_validate_json(answer.content)
    assert answer.headers["location"] == f"{SCHEDULES}/{schedule['id']}"
    assert answer.headers["etag"] == schedule["etag"]
    assert (schedule["state"], schedule["next_time"]) == ("ACTIVE", "2026-11-19T01:30:00.000Z")
    spec = schedule["spec"]
    assert (spec["cron"], spec["overlap"], spec["catchup_window_s"]) == ("30 2 * * 1-5", "skip", 3600)
    assert (spec["jitter_s"], spec["start"], spec["end"], spec["pause_after_failures"]) == (0, None, None, 3)
    assert (spec["target"]["job"]["name"], spec["target"]["job"]["batch"]["global_size"]) == ("nightly", 128)
    assert (await client.get(answer.headers["location"])).json() == schedule
    unchanged = await client.get(answer.headers["location"], headers={"If-None-Match": schedule["etag"]})
    assert unchanged.status_code == 304


@pytest.mark.parametrize("verb", ["pause", "resume", "trigger"])
async def test_a_command_takes_no_body_and_ignores_none(client: httpx2.AsyncClient, firing: Firing, verb: str) -> None:
    schedule = await created(client)
    path = f"{SCHEDULES}/{schedule['id']}"
    for body in ({"until": "tomorrow"}, [], "now"):
        problem = assert_problem(await client.post(f"{path}/{verb}", json=body), 422, "INVALID")
        assert "send no body" in problem["errors"][0]["detail"]
    assert_problem(await client.post(f"{path}/{verb}", content=b"{"), 400, "BAD_REQUEST")
    assert (await client.get(path)).json() == schedule
    assert (await client.get(f"{path}/runs")).json()["runs"] == []
    assert (await client.post(f"{path}/{verb}", json={})).status_code == 200


async def test_repeating_a_call_with_its_key_makes_one_schedule(client: httpx2.AsyncClient, firing: Firing) -> None:
    key = {"Idempotency-Key": "k1"}
    first = await client.post(SCHEDULES, json=schedule_document(), headers=key)
    again = await client.post(SCHEDULES, json=schedule_document(), headers=key)
    assert (first.status_code, again.status_code, again.json()) == (201, 200, first.json())
    assert again.headers["idempotent-replayed"] == "true"
    other = await client.post(SCHEDULES, json=schedule_document(name="other"), headers=key)
    assert_problem(other, 422, "IDEMPOTENCY_KEY_REUSED")
    taken = await client.post(SCHEDULES, json=schedule_document())
    assert first.json()["id"] in assert_problem(taken, 409, "NAME_TAKEN")["detail"]


@pytest.mark.parametrize(
    ("changes", "pointer", "told"),
    [
        ({"cron": "0 0 30 2 *"}, "/cron", "would never fire; give a day"),
        ({"cron": 5}, "/cron", "must be a text of five fields"),
        ({"time_zone": "Europe/Berlim"}, "/time_zone", "did you mean 'Europe/Berlin'?"),
        ({"time_zone": "../../etc/passwd"}, "/time_zone", "is not the IANA name of a time zone"),
        ({"time_zone": "localtime"}, "/time_zone", "is not the IANA name of a time zone"),
        ({"overlap": "skipp"}, "/overlap", "did you mean 'skip'?"),
        ({"jitter_s": -1}, "/jitter_s", "must be greater than or equal to 0 (seen: -1)"),
        ({"catchup_window_s": "60"}, "/catchup_window_s", "a number is written without quotes"),
        ({"start": "2026-11-20T09:30:00"}, "/start", "with its offset"),
        ({"start": "tomorrow"}, "/start", "by RFC 3339"),
        ({"end": "9999-12-31T23:59:59Z"}, "/end", "from 2000 to 2199"),
        ({"end": "2026-11-18T07:30:00Z"}, "/end", "has no time from 2026-11-18T07:06:00.000Z until"),
        ({"start": "2027-01-02T00:00:00Z", "end": "2027-01-01T00:00:00Z"}, "/end", "is before start="),
        ({"pause_after_failures": 0}, "/pause_after_failures", "must be greater than or equal to 1"),
        ({"crn": "0 2 * * *"}, "/crn", "unknown key 'crn'; did you mean 'cron'?"),
        ({"target": {}}, "/target", "must hold one of job, sweep (seen: nothing)"),
        ({"target": {"job": JOB, "sweep": {}}}, "/target", "must hold one of job, sweep (seen: 'job', 'sweep')"),
        ({"target": {"job": {**JOB, "steps": 0}}}, "/target/job/steps", "must be greater than 0"),
        ({"target": {"job": {**JOB, "entrypoint": "a:b", "bundle": "x"}}}, "/target/job/bundle", "no bundle 'x'"),
        ({"target": {"job": {**JOB, "name": "A"}}}, "/target/job/name", "DNS-1123"),
        ({"target": {"sweep": {**SWEEP, "trials": 0}}}, "/target/sweep/trials", "greater than or equal to 1"),
        ({"target": {"sweep": {**SWEEP, "warm_start": ["x"]}}}, "/target/sweep/warm_start/0", "no sweep 'x'"),
    ],
)
async def test_a_bad_spec_is_refused_with_pointer_value_and_remedy(
    client: httpx2.AsyncClient, firing: Firing, changes: dict[str, Any], pointer: str, told: str
) -> None:
    for address in (SCHEDULES, f"{SCHEDULES}/validate"):
        problems = assert_problem(await client.post(address, json=schedule_document(**changes)), 422, "INVALID")
        assert [problem["pointer"] for problem in problems["errors"]] == [pointer]
        assert told in problems["errors"][0]["detail"]
    assert (await client.get(SCHEDULES)).json()["schedules"] == []


async def test_faults_of_the_schedule_and_of_its_job_are_told_at_once(
    client: httpx2.AsyncClient, firing: Firing
) -> None:
    document = schedule_document(name="A B", cron="x", target={"job": {**JOB, "steps": 0}})
    told = assert_problem(await client.post(SCHEDULES, json=document), 422, "INVALID")
    assert [problem["pointer"] for problem in told["errors"]] == ["/name", "/cron", "/target/job/steps"]


async def test_a_sweep_that_is_refused_is_refused_in_schedules_too(client: httpx2.AsyncClient, firing: Firing) -> None:
    answer = await client.post(SCHEDULES, json=schedule_document(target={"sweep": {**SWEEP, "promote": "best"}}))
    (told,) = assert_problem(answer, 422, "INVALID")["errors"]
    assert told["pointer"] == "/target/sweep/promote"


async def test_validating_resolves_and_stores_nothing(client: httpx2.AsyncClient, firing: Firing) -> None:
    answer = await client.post(f"{SCHEDULES}/validate", json=schedule_document(start="2026-12-01T00:00:00+01:00"))
    assert answer.status_code == 200
    assert answer.json()["start"] == "2026-11-30T23:00:00.000Z"
    assert answer.json()["target"]["job"]["optimizer"]["lr"] == 0.001
    assert (await client.get(SCHEDULES)).json() == {"schedules": [], "next_page_token": None}


async def test_lists_come_in_pages_newest_first_and_by_state_and_name(
    client: httpx2.AsyncClient, firing: Firing
) -> None:
    names = [f"s-{n}" for n in range(5)]
    ids = {name: (await created(client, name=name))["id"] for name in names}
    await client.post(f"{SCHEDULES}/{ids['s-1']}/pause")
    first = await client.get(SCHEDULES, params={"page_size": 3})
    ScheduleList.model_validate_json(first.content)
    rest = await client.get(SCHEDULES, params={"page_size": 3, "page_token": first.json()["next_page_token"]})
    assert [each["name"] for page in (first, rest) for each in page.json()["schedules"]] == names[::-1]
    assert rest.json()["next_page_token"] is None
    for params, found in (({"state": "PAUSED"}, ["s-1"]), ({"search": "-3"}, ["s-3"]), ({"search": "%"}, [])):
        listed = (await client.get(SCHEDULES, params=params)).json()["schedules"]
        assert [each["name"] for each in listed] == found
    assert_problem(await client.get(SCHEDULES, params={"state": "GONE"}), 400, "BAD_REQUEST")
    foreign = {"state": "PAUSED", "page_token": first.json()["next_page_token"]}
    assert_problem(await client.get(SCHEDULES, params=foreign), 400, "BAD_REQUEST")


async def test_upcoming_times_are_in_utc_and_a_change_of_clocks_is_told(
    client: httpx2.AsyncClient, firing: Firing, clock: Clock
) -> None:
    clock.now_s = at(12) + 129 * 86400  # 27 March 2027
    schedule = await created(client, cron="30 2 * * *", time_zone="Europe/Berlin")
    answer = await client.get(f"{SCHEDULES}/{schedule['id']}/upcoming", params={"count": 2})
    UpcomingTimes.model_validate_json(answer.content)
    assert answer.json() == {
        "times": ["2027-03-28T01:00:00.000Z", "2027-03-29T00:30:00.000Z"],
        "notices": [
            "On Sunday, 28 March 2027, clocks in Europe/Berlin go forward from 02:00 to 03:00; "
            "02:30, which is skipped, is met at 03:00."
        ],
    }


async def test_the_history_tells_each_nominal_time_with_its_child(client: httpx2.AsyncClient, firing: Firing) -> None:
    schedule = await created(client, catchup_window_s=60)
    await firing.at(at(9))
    answer = await client.get(f"{SCHEDULES}/{schedule['id']}/runs", params={"page_size": 1})
    ScheduleRuns.model_validate_json(answer.content)
    (run,) = answer.json()["runs"]
    child = (await client.get(f"/api/v1/jobs/{run['child_id']}")).json()
    assert run == {
        "nominal_time": "2026-11-18T09:00:00.000Z",
        "fired_at": "2026-11-18T09:00:00.000Z",
        "outcome": "STARTED",
        "kind": "job",
        "child_id": child["id"],
        "child_state": "QUEUED",
        "child_lives": True,
        "reason": None,
    }
    params = {"page_size": 1, "page_token": answer.json()["next_page_token"]}
    rest = (await client.get(f"{SCHEDULES}/{schedule['id']}/runs", params=params)).json()
    assert [(each["nominal_time"][11:16], each["outcome"]) for each in rest["runs"]] == [("08:00", "MISSED")]
    assert rest["next_page_token"] is None


async def test_replacing_takes_the_whole_spec_and_the_version_that_was_read(
    client: httpx2.AsyncClient, firing: Firing
) -> None:
    schedule = await created(client, overlap="allow")
    place = f"{SCHEDULES}/{schedule['id']}"
    await firing.at(at(8))  # which is no change of intent
    answer = await client.put(place, json=schedule_document(cron="45 * * * *"), headers={"If-Match": schedule["etag"]})
    assert answer.status_code == 200
    assert (answer.json()["next_time"], answer.json()["spec"]["overlap"]) == ("2026-11-18T08:45:00.000Z", "skip")
    stale = await client.put(place, json=schedule_document(), headers={"If-Match": schedule["etag"]})
    assert_problem(stale, 412, "PRECONDITION_FAILED")
    assert_problem(await client.put(place, json=schedule_document(cron="x")), 422, "INVALID")
    await created(client, name="other")
    assert_problem(await client.put(place, json=schedule_document(name="other")), 409, "NAME_TAKEN")


async def test_what_is_due_and_not_decided_survives_a_change_of_the_target(
    client: httpx2.AsyncClient, firing: Firing, clock: Clock
) -> None:
    schedule = await created(client)
    clock.now_s = at(8) + 5
    await client.put(f"{SCHEDULES}/{schedule['id']}", json=schedule_document(target={"job": {**JOB, "steps": 20}}))
    await firing.at(at(8) + 6)
    (run,) = (await client.get(f"{SCHEDULES}/{schedule['id']}/runs")).json()["runs"]
    assert run["nominal_time"] == "2026-11-18T08:00:00.000Z"
    assert (await client.get(f"/api/v1/jobs/{run['child_id']}")).json()["spec"]["steps"] == 20


@pytest.mark.parametrize(
    "changes", [{"jitter_s": 3001}, {"jitter_s": 0}, {"start": "2026-11-18T08:00:00Z"}, {"cron": "0 */2 * * *"}]
)
async def test_a_time_that_waits_for_its_jitter_is_met_whatever_times_come_next(
    client: httpx2.AsyncClient, firing: Firing, clock: Clock, changes: dict[str, Any]
) -> None:
    schedule = await created(client, jitter_s=3000)
    clock.now_s = at(8)
    await client.put(f"{SCHEDULES}/{schedule['id']}", json=schedule_document(**{"jitter_s": 3000, **changes}))
    await firing.at(at(8, 59))
    (run,) = (await client.get(f"{SCHEDULES}/{schedule['id']}/runs")).json()["runs"]
    assert (run["nominal_time"], run["outcome"]) == ("2026-11-18T08:00:00.000Z", "STARTED")


async def test_a_time_that_waits_for_its_jitter_is_met_as_it_was_where_the_new_spec_has_none_such(
    client: httpx2.AsyncClient, firing: Firing, clock: Clock
) -> None:
    schedule = await created(client, jitter_s=3000)
    clock.now_s = at(8)
    changed = schedule_document(jitter_s=3000, cron="5 * * * *")
    await client.put(f"{SCHEDULES}/{schedule['id']}", json=changed)
    await firing.at(at(8, 5) - 1)
    (run,) = (await client.get(f"{SCHEDULES}/{schedule['id']}/runs")).json()["runs"]
    assert (run["nominal_time"], run["outcome"]) == ("2026-11-18T08:00:00.000Z", "STARTED")
    told = (await client.get(f"{SCHEDULES}/{schedule['id']}/upcoming")).json()
    assert told["times"][0] == "2026-11-18T08:05:00.000Z"


async def test_of_times_that_only_the_new_spec_has_none_before_now_is_started_besides(
    client: httpx2.AsyncClient, firing: Firing, clock: Clock
) -> None:
    schedule = await created(client, jitter_s=3000, overlap="allow")
    clock.now_s = at(8, 5) + 1
    changed = schedule_document(overlap="allow", cron="* * * * *")
    await client.put(f"{SCHEDULES}/{schedule['id']}", json=changed)
    await firing.at(at(8, 6) - 1)
    (run,) = (await client.get(f"{SCHEDULES}/{schedule['id']}/runs")).json()["runs"]
    assert (run["nominal_time"], run["outcome"]) == ("2026-11-18T08:05:00.000Z", "STARTED")


async def test_pausing_and_resuming_again_and_again_is_safe_and_passed_times_are_not_made_good(
    client: httpx2.AsyncClient, firing: Firing
) -> None:
    place = f"{SCHEDULES}/{(await created(client))['id']}"
    for _ in range(2):
        paused = await client.post(f"{place}/pause")
        assert (paused.status_code, paused.json()["state"], paused.json()["next_time"]) == (200, "PAUSED", None)
    assert paused.json()["reason"] == "paused by hand"
    await firing.at(at(10, 30))
    for _ in range(2):
        resumed = await client.post(f"{place}/resume")
        assert (resumed.json()["state"], resumed.json()["next_time"]) == ("ACTIVE", "2026-11-18T11:00:00.000Z")
    assert (await client.get(f"{place}/runs")).json()["runs"] == []


async def test_a_schedule_that_ended_is_neither_paused_nor_resumed_but_goes_on_with_a_later_end(
    client: httpx2.AsyncClient, firing: Firing
) -> None:
    place = f"{SCHEDULES}/{(await created(client, end='2026-11-18T08:30:00Z'))['id']}"
    await firing.at(at(9))
    assert (await client.get(place)).json()["state"] == "ENDED"
    assert (await client.get(f"{place}/upcoming")).json()["times"] == []
    for verb in ("pause", "resume"):
        assert_problem(await client.post(f"{place}/{verb}"), 409, "ILLEGAL_TRANSITION")
    again = await client.put(place, json=schedule_document())
    assert (again.json()["state"], again.json()["next_time"]) == ("ACTIVE", "2026-11-18T10:00:00.000Z")


async def test_a_trigger_runs_it_now_by_its_own_rule_once_a_key(client: httpx2.AsyncClient, firing: Firing) -> None:
    place = f"{SCHEDULES}/{(await created(client))['id']}"
    await client.post(f"{place}/pause")
    key = {"Idempotency-Key": "t1"}
    first = await client.post(f"{place}/trigger", headers=key)
    ScheduleRun.model_validate_json(first.content)
    assert (first.json()["outcome"], first.json()["reason"]) == ("STARTED", "triggered by hand")
    assert (await client.post(f"{place}/trigger", headers=key)).json() == first.json()
    for _ in range(MAX_TRIES):
        other = (await client.post(f"{place}/trigger")).json()
        assert other["outcome"] == "SKIPPED"
        assert other["nominal_time"] != first.json()["nominal_time"]
    # However many runs there were since.
    assert (await client.post(f"{place}/trigger", headers=key)).json() == first.json()
    assert len((await client.get("/api/v1/jobs")).json()["jobs"]) == 1


async def test_what_a_deleted_schedule_started_stays(client: httpx2.AsyncClient, firing: Firing) -> None:
    place = f"{SCHEDULES}/{(await created(client))['id']}"
    child = (await client.post(f"{place}/trigger")).json()["child_id"]
    assert (await client.delete(place)).status_code == 204
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/runs"), ("GET", "/upcoming"), ("POST", "/trigger")):
        assert_problem(await client.request(method, place + path), 404, "NOT_FOUND")
    assert (await client.get(f"/api/v1/jobs/{child}")).status_code == 200


async def test_a_stream_tells_of_schedules(client: httpx2.AsyncClient, services: Services, firing: Firing) -> None:
    schedule = await created(client)
    events = services.feed.follow(read_topics(["schedules"]), 0)
    await services.feed.look()
    frames = b"".join([await anext(events) for _ in range(2)])
    await events.aclose()
    assert b"event: schedule" in frames
    assert schedule["id"].encode() in frames


@pytest.mark.parametrize(
    "gpus", [{"job": {**SWEPT_JOB, "resources": {"gpus": 1}}}, {"space": {"resources.gpus": {"choice": [0, 1]}}}]
)
async def test_cost_is_no_limit_of_sweeps_whose_gpus_have_no_price(
    running_app: Any, settings: Settings, gpus: dict[str, Any]
) -> None:
    sweep = sweep_document(limits={"cost": 1}, **gpus)
    schedule = schedule_document(target={"sweep": sweep})
    async with running_app(settings.model_copy(update={"price_cpu_hour": 1.0})) as client:
        for place, body, prefix in (("/api/v1/sweeps", sweep, ""), ("/api/v1/schedules", schedule, "/target/sweep")):
            (problem,) = assert_problem(await client.post(place, json=body), 422, "INVALID")["errors"]
            assert (problem["pointer"], "set price_gpu_hour" in problem["detail"]) == (f"{prefix}/limits/cost", True)
