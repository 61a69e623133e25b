"""``/sweeps`` over HTTP: what a sweep found, and what one will cost."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from service.api.sweep_shapes import SweepEstimate, SweepReport
from service.cost import Prices
from service.settings import Settings
from service.sweep_report import report_document
from tests.service.given import record, snapshot
from tests.service.swept import JOB, SWEEPS, Swept, point, sweep_document

pytestmark = pytest.mark.anyio


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
    assert "luckiest of 3 trials" in report["caution"]
    assert report["importance"] == {"optimizer.lr": 0.7, "batch.global_size": 0.3}
    assert report["importance_at"] == 320  # all four that say something came there, and but two further
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


async def test_of_all_reports_a_report_reads_those_by_which_trials_are_compared(
    client: httpx2.AsyncClient, swept: Swept
) -> None:
    await swept.begin(point(0.001), point(0.01), point(0.1))
    await swept.report(0, **{f"r{n}": n / 100 for n in range(4, 101, 4)})
    await swept.end(0)
    await swept.report(1, r4=0.3)
    view, whole = await swept.store.sweeps.view(swept.id), await swept.view()
    assert view is not None
    assert [len(trial.reports) for trial in whole.trials] == [25, 1, 0]
    assert [[r.samples for r in trial.reports] for trial in view.trials] == [[384, 1024, 2944, 3200], [128], []]
    prices = Prices(None, None, "EUR")
    assert report_document(view, prices) == report_document(whole, prices)


async def test_what_is_better_by_a_few_billionths_is_the_best_and_no_row_of_improvements(
    client: httpx2.AsyncClient, swept: Swept
) -> None:
    await swept.begin(point(0.001), point(0.01))
    await swept.complete(0, 0.8)
    await swept.complete(1, 0.8 + 3e-9)
    report = (await client.get(f"{SWEEPS}/{swept.id}/report")).json()
    assert (report["best"]["trial"], report["best_so_far"][-1]["best"]) == (1, 0.8 + 3e-9)
    assert [each["trial"] for each in report["improvements"]] == [0]
    assert "better by" not in (await client.get(f"/sweeps/{swept.id}")).text


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
    assert "not known before a job of this code with `epochs` has run" in unknown["notes"][1]
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
    limited = sweep_document(promote="digits", limits={"time_s": 60, "trials_without_improvement": 3})
    told = (await client.post(f"{SWEEPS}/estimate", json=limited)).json()
    assert told["notes"][-1].startswith("that counts against limits.time_s, too")


async def test_an_estimate_counts_no_trial_of_what_is_in_use_among_those_that_are_held_against_it(
    client: httpx2.AsyncClient,
) -> None:
    job = {**JOB, "batch": {"global_size": 64}}
    await client.put("/api/v1/configurations/digits", json=job)

    async def told(num_trials: int, **changes: Any) -> tuple[dict[str, int], str]:
        asked = sweep_document(job={"from": "digits"}, promote="digits", trials=num_trials, **changes)
        found = (await client.post(f"{SWEEPS}/estimate", json=asked)).json()
        return found["promotion_samples"], found["notes"][-1]

    assert (await told(4))[0] == {"low": 20 * 3200, "high": 80 * 3200}
    assert (await told(3))[0] == {"low": 15 * 3200, "high": 60 * 3200}
    samples, note = await told(1, limits={"time_s": 60})
    assert samples == {"low": 0, "high": 0}
    assert note == "nothing can be promoted: the one trial is digits itself; allow more trials"
    outside = {"optimizer.lr": {"log_uniform": [0.01, 0.1]}}  # where it is not
    assert (await told(1, space=outside))[0] == {"low": 10 * 3200, "high": 40 * 3200}


async def test_money_is_told_where_the_settings_have_prices(running_app: Any, settings: Settings) -> None:
    async with running_app(settings.model_copy(update={"price_cpu_hour": 3600.0})) as client:
        limited = await client.post(SWEEPS, json=sweep_document(limits={"cost": 1}))
        assert limited.status_code == 201
        report = (await client.get(f"{SWEEPS}/{limited.json()['id']}/report")).json()
        assert report["cost"] == {"worker_s": 0.0, "amount": 0.0, "currency": "EUR", "is_upper_bound": False}
