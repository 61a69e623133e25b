"""The pages of sweeps: what they show of each kind of sweep."""

from __future__ import annotations

import httpx2
import pytest

from service.api.sweep_shapes import SweepReport
from service.configuration_records import Origin
from service.pages.render import part
from service.pages.sweep_charts import curve_view, levels, parallel_view
from service.pages.sweeps import Now, Shown, sweep_view
from service.records import Transition
from service.services import Services
from service.states import JobState
from service.sweep_specs import read_sweep_spec, sample_job
from tests.service.given import Clock, leader, record, snapshot
from tests.service.scheduled import SWEEP, schedule_document
from tests.service.swept import JOB, Swept, point, sweep_document

pytestmark = pytest.mark.anyio

BROWSER = {"Origin": "http://127.0.0.1:8420", "Sec-Fetch-Site": "same-origin", "Accept": "text/html"}


@pytest.fixture
async def swept(client: httpx2.AsyncClient, services: Services, clock: Clock) -> Swept:
    return await Swept.created(services.store, clock, await leader(services.store))


async def test_a_page_is_whole_before_the_first_trial_and_after_the_last(
    client: httpx2.AsyncClient, swept: Swept
) -> None:
    place = f"/sweeps/{swept.id}"
    young = (await client.get(place)).text
    for text in ("No trial is complete yet", "The curve begins with", "No trial yet", "Told once four trials"):
        assert text in young
    await swept.play()
    await swept.finish()
    await swept.look()
    for address in (place, f"{place}?sort=best", f"{place}?from=x"):
        answer = await client.get(address)
        assert answer.status_code == 200
        for text in (
            "<b>95 %</b>",
            "luckiest of 4 trials",
            "lr is too much",
            "state PRUNED",
            'data-trial="3"',
            "Ray",
        ):
            assert text in answer.text, text
    assert (await client.get("/sweeps")).text.count("digits-lr") >= 1
    assert (await client.get("/sweeps?q=nothing")).status_code == 200
    assert (await client.get("/sweeps/sweep_x")).status_code == 404
    job = await swept.job(0)
    assert f'trial 0 of <a href="{place}">' in (await client.get(f"/jobs/{job.id}")).text


async def ended_to_promote(client: httpx2.AsyncClient, swept: Swept) -> str:
    """The place of a sweep that has ended, whose winner is to be held against a configuration."""
    place = f"/sweeps/{swept.id}"
    await client.put("/api/v1/configurations/digits", json=JOB)
    await swept.play()
    await swept.finish()
    await client.post(f"/api/v1{place}/promote", json={"configuration": "digits"})
    return place


async def test_the_page_tells_how_the_winner_compares_with_what_is_in_use(
    client: httpx2.AsyncClient, swept: Swept
) -> None:
    place = await ended_to_promote(client, swept)
    assert "once the sweep has ended" in (await client.get(place)).text
    await swept.compare()
    going_on = (await client.get(place)).text
    assert "its winner is held against version 1 of digits: 0 of 2 runs have ended so far" in going_on
    assert "Stop comparing" in going_on
    await swept.conclude({-1: 0.9, 0: 0.85, 1: 0.92, 3: 0.8}.__getitem__)
    ended = (await client.get(place)).text
    for text in (
        "digits is at version 2 now: trial 1",
        "is better by 2.2 % (2.2 to 2.2 %) in 8 pairs",
        "92 %",
        "in use",
    ):
        assert text in ended, text
    told = (await client.get("/configurations/digits")).text
    assert "is better by 2.2 %" in told
    assert f'href="{place}"' in told
    report = (await client.get(f"/api/v1{place}/report")).json()
    SweepReport.model_validate(report)
    assert (report["promotion"]["trial"], report["promotion"]["version"]) == (1, 2)
    again = await client.post(f"/api/v1{place}/promote", json={"configuration": "digits"})
    assert "that was decided: trial 1 is better; extend the sweep" in again.json()["detail"]
    assert "Promote to digits" not in ended
    await client.post(f"/api/v1{place}/extend", json={"trials": 9})
    swept.clock.now_s += 1
    await swept.finish()
    assert "Promote to digits" in (await client.get(place)).text
    pressed = await client.post(f"{place}/actions/promote", headers=BROWSER)
    assert (pressed.status_code, pressed.headers["location"]) == (303, place)
    await swept.compare()
    told = (await client.get(place)).text
    assert "its winner is held against version 2 of digits: 0 of 2 runs" in told
    assert "2 runs of the latest promotion: " in told


@pytest.mark.parametrize(
    ("winner", "became"), [(0.92, "digits became version 2: trial 1 "), (0.9, "digits stayed at version 1: not ")]
)
async def test_the_page_tells_that_the_configuration_was_changed_after_that_or_deleted(
    client: httpx2.AsyncClient, swept: Swept, winner: float, became: str
) -> None:
    place, configuration = await ended_to_promote(client, swept), "/api/v1/configurations/digits"
    await swept.compare()
    await swept.conclude({-1: 0.9, 0: 0.85, 1: winner, 3: 0.8}.__getitem__)
    put = (await client.put(configuration, json={**JOB, "seed": 3})).json()
    told = (await client.get(place)).text
    assert became in told
    assert f"it was changed since, and is at version {put['version']} now" in told
    await client.delete(configuration)
    assert "it was deleted since" in (await client.get(place)).text


@pytest.mark.parametrize(
    ("origin", "change", "status"),
    [
        (None, "none", 409),
        (None, "changed", 200),
        (None, "deleted", 422),
        (None, "anew", 200),
        (Origin("digits", 1), "filed", 200),
        (Origin("digits", 1), "changed", 409),
        (Origin("digits", 1), "deleted", 422),
    ],
)
async def test_the_page_offers_to_promote_again_where_a_request_for_it_is_not_refused(
    client: httpx2.AsyncClient, services: Services, clock: Clock, origin: Origin | None, change: str, status: int
) -> None:
    store, address = services.store, "/api/v1/configurations/digits"
    await client.put(address, json=JOB)
    sweep_spec = read_sweep_spec(sweep_document(promote="digits"), has_prices=False)
    created = await store.sweeps.create(sweep_spec, sample_job(sweep_spec), None, origin)
    swept = await Swept.of(store, clock, created.sweep.id)
    await swept.play()
    await swept.finish()
    await swept.conclude(lambda contender: 0.9 if contender == -1 else 0.8)
    place, offer = f"/sweeps/{swept.id}", "Promote to digits"
    assert offer not in (await client.get(place)).text
    changed = {"filed": {"labels": {"team": "vision"}}, "changed": {"seed": 3}, "anew": {"seed": 3}}
    if change in ("deleted", "anew"):
        await client.delete(address)
    if change in changed:
        await client.put(address, json={**JOB, **changed[change]})
    is_offered = offer in (await client.get(place)).text
    answer = await client.post(f"/api/v1{place}/promote", json={})
    assert (answer.status_code, is_offered) == (status, status == 200), answer.text


async def test_after_a_stop_page_and_report_tell_what_the_runs_of_a_promotion_took(
    client: httpx2.AsyncClient, swept: Swept
) -> None:
    place = await ended_to_promote(client, swept)
    assert "of worker time" not in (await client.get(place)).text
    await swept.compare()
    view = await swept.store.reconciler.promotion_view(swept.id)
    assert view is not None
    for run in view.runs:
        job = await swept.store.reconciler.job(run.job_id)
        assert job is not None
        job = await swept.store.reconciler.admit(job, 1, swept.fence)
        await swept.store.reconciler.transition(job, JobState.RUNNING, Transition(), swept.fence)
        swept.clock.now_s += 20
        await swept.store.reconciler.fold(snapshot(job, [record(1)]), swept.fence)
    assert "2 runs: 40 s of worker time, not in the cost of the trials" in (await client.get(place)).text
    await client.post(f"/api/v1{place}/stop")
    told = (await client.get(place)).text
    assert "nothing was promoted to digits: stopped by hand" in told
    assert "2 runs, of which 2 are being ended: 40 s of worker time, not in the cost of the trials" in told
    assert (await client.get(f"/api/v1{place}/report")).json()["promotion"]["worker_s"] == 40.0


async def test_the_page_tells_what_is_as_good_and_cheaper_saves_and_how_sure_that_is(
    client: httpx2.AsyncClient, swept: Swept
) -> None:
    place = await ended_to_promote(client, swept)
    await swept.conclude(lambda _: 0.9, lasts_s=lambda contender: 10.0 if contender == 1 else 40.0)
    told = (await client.get(place)).text
    saved = '<td class="num">1</td><td class="num">75 %</td><td class="num">0.00391</td><td class="num">10 s</td>'
    for text in ("costs 75 % less", "p of as good and cheaper", saved):
        assert text in told, text


async def test_actions_without_javascript_ask_and_lead_back(client: httpx2.AsyncClient, swept: Swept) -> None:
    place = f"/sweeps/{swept.id}"
    extended = await client.post(f"{place}/actions/extend", data={"trials": "12"}, headers=BROWSER)
    assert (extended.status_code, extended.headers["location"]) == (303, place)
    assert (await swept.row()).num_trials == 12
    for wanted, status in (("x", 422), ("3", 422)):
        refused = await client.post(f"{place}/actions/extend", data={"trials": wanted}, headers=BROWSER)
        assert refused.status_code == status
    asked = await client.post(f"{place}/actions/stop", headers=BROWSER)
    assert (asked.status_code, "Stop digits-lr?" in asked.text, (await swept.row()).state) == (200, True, "RUNNING")
    await client.post(f"{place}/actions/stop", data={"confirmed": "yes"}, headers=BROWSER)
    assert (await swept.row()).state == "STOPPED"


async def test_a_trial_is_ended_on_its_row_and_compared_with_the_best_one(
    client: httpx2.AsyncClient, swept: Swept
) -> None:
    place = f"/sweeps/{swept.id}"
    await swept.begin(point(0.01), point(0.02))
    await swept.report(0, r10=0.5)
    await swept.complete(1, 0.9)
    shown = (await client.get(place)).text
    assert 'id="end-trial-0"' in shown
    assert 'id="end-trial-1"' not in shown
    ids = [(await swept.trial(number)).job_id for number in (1, 0)]
    assert f'href="/compare?jobs={"%2C".join(ids)}&amp;key=eval.accuracy" aria-label="Compare trial 0' in shown
    assert shown.count("/compare?") == 1
    asked = await client.post(f"{place}/actions/end-trial", data={"trial": "0"}, headers=BROWSER)
    assert "End trial 0 of digits-lr?" in asked.text
    assert '<input type="hidden" name="trial" value="0">' in asked.text
    assert (await swept.job(0)).state is JobState.RUNNING
    done = await client.post(f"{place}/actions/end-trial", data={"trial": "0", "confirmed": "yes"}, headers=BROWSER)
    assert (done.status_code, done.headers["location"]) == (303, place)
    assert (await swept.job(0)).state is JobState.CANCELLING
    for number, status, word in (("1", 409, "COMPLETE already"), ("7", 404, "no trial 7; it has 2"), ("x", 422, "x")):
        data = {"trial": number, "confirmed": "yes"}
        refused = await client.post(f"{place}/actions/end-trial", data=data, headers=BROWSER)
        assert (refused.status_code, word in refused.text) == (status, True)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"job": {**JOB, "samples": None, "epochs": 3}, "pruner": "asha"},
            "Nobody knows yet where trials are compared",
        ),
        ({"pruner": "none"}, "Trials are compared nowhere"),
        ({"population": "pbt", "pruner": "none", "trials": 4, "parallel": 4}, "compared with each other 10 times"),
    ],
)
async def test_the_page_tells_why_there_are_no_rungs(
    client: httpx2.AsyncClient, changes: dict[str, object], told: str
) -> None:
    made = await client.post("/api/v1/sweeps", json=sweep_document(**changes))
    assert made.status_code == 201, made.text
    assert told in (await client.get(f"/sweeps/{made.json()['id']}")).text


async def test_a_population_has_no_point_that_could_be_promoted(
    client: httpx2.AsyncClient, services: Services, clock: Clock
) -> None:
    given = {"population": "pbt", "pruner": "none", "trials": 2, "parallel": 2}
    swept = await Swept.created(services.store, clock, await leader(services.store), **given)
    await client.put("/api/v1/configurations/digits", json=JOB)
    await swept.begin(point(0.001), point(0.01))
    await swept.complete(0, 0.9)
    await swept.complete(1, 0.97)
    await swept.finish()
    told = (await client.get(f"/sweeps/{swept.id}")).text
    for text in ("optimizer.lr 0.01, batch.global_size 32 at last", "Not told of a population"):
        assert text in told, text
    assert "Promote to" not in told
    refused = await client.post(f"/api/v1/sweeps/{swept.id}/promote", json={"configuration": "digits"})
    assert (refused.status_code, refused.json()["detail"][:23]) == (409, "pbt changes values on t")
    asked = {**sweep_document(**given), "promote": "digits"}
    assert [e["pointer"] for e in (await client.post("/api/v1/sweeps", json=asked)).json()["errors"]] == ["/promote"]


async def test_what_a_population_changed_on_the_way_stands_beside_the_best(
    client: httpx2.AsyncClient, swept: Swept
) -> None:
    await swept.play()
    sweep = (await client.get(f"/api/v1/sweeps/{swept.id}")).json()
    report = (await client.get(f"/api/v1/sweeps/{swept.id}/report")).json()
    stages = [{"trial": 0, "samples": 0, "params": point(0.5)}, {"trial": 1, "samples": 4200, "params": point(0.25)}]
    view = sweep_view(sweep, {**report, "schedule": stages}, [], Shown(is_by_value=False, first=0), Now(ran_s=1.0))
    told = bytes(part("sweep/aside.html", view).body).decode()
    for text in ("Behind the best state", '<td class="num">4,200</td><td>1</td><td>optimizer.lr 0.25, batch'):
        assert text in told, told


async def test_the_page_of_a_schedule_leads_to_the_sweeps_that_it_started(client: httpx2.AsyncClient) -> None:
    made = (await client.post("/api/v1/schedules", json=schedule_document(target={"sweep": SWEEP}))).json()
    run = (await client.post(f"/api/v1/schedules/{made['id']}/trigger")).json()
    told = (await client.get(f"/schedules/{made['id']}")).text
    assert f'href="/sweeps/{run["child_id"]}"' in told
    listed = f"/sweeps?schedule={made['id']}"
    assert f'href="{listed}"' in told
    assert run["child_id"] in (await client.get(listed)).text


def trial(number: int, value: float | None, **params: float) -> dict[str, object]:
    named = {path.replace("__", "."): given for path, given in params.items()}
    return {"number": number, "value": value, "last_value": None, "params": named}


def test_less_is_drawn_higher_where_less_is_better() -> None:
    spec = {**sweep_document(), "metric": "loss", "mode": "min"}
    trials = [trial(0, 2.0, optimizer__lr=1e-4, batch__global_size=32), trial(1, 1.0, optimizer__lr=1e-1)]
    drawn = parallel_view(spec, trials, levels(trials, "min"))
    assert drawn is not None
    assert [line["at"] for line in drawn["lines"]] == ["0.000 0.000 0.000", "1.000 - 1.000"]
    assert [tick["word"] for tick in drawn["axes"][2]["ticks"]] == ["2", "1"]
    assert (drawn["lines"][-1]["number"], drawn["lines"][0]["level"]) == (1, 0)


def test_the_curve_is_one_step_after_another() -> None:
    better = {"trial": 0, "value": 0.5, "gain": None, "worker_s": 1.0}
    points = [{"trial": n, "best": best, "samples": n, "worker_s": n} for n, best in enumerate([None, 0.5, 0.5, 1.0])]
    drawn = curve_view({"metric": "loss", "best_so_far": points, "improvements": [{**better, "trial": 1}]})
    assert drawn is not None
    assert drawn["path"] == "M4.0 96.0H996.0V4.0H996.0"
    assert [mark["x"] for mark in drawn["marks"]] == ["4.0"]
