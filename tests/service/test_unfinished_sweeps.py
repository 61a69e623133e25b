"""A sweep that was ended before any trial was complete has found something all the same."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from service import sweep_words
from service.store.opening import Store
from service.sweep_records import SweepState
from tests.service.given import Clock, leader, spec
from tests.service.swept import JOB, Swept, point
from tests.service.test_api_jobs import assert_problem
from tuning.orders import Finish

pytestmark = pytest.mark.anyio


async def cut_short(store: Store, clock: Clock, **changes: Any) -> Swept:
    swept = await Swept.created(store, clock, await leader(store), parallel=4, **changes)
    await swept.begin(point(0.001), point(0.01), point(0.1))
    await swept.report(0, r10=0.5, r30=0.6)
    await swept.report(1, r10=0.4, r30=0.7, r40=0.1)
    await swept.report(2, r10=0.9)
    await swept.order(Finish(has_succeeded=True, reason="limits.time_s=60 is reached after 60 s"))
    return swept


@pytest.mark.parametrize(("mode", "trial", "value"), [("max", 1, 0.7), ("min", 0, 0.6)])
async def test_its_best_is_the_one_of_the_furthest_rung(
    client: httpx2.AsyncClient, services: Any, clock: Clock, mode: str, trial: int, value: float
) -> None:
    swept = await cut_short(services.store, clock, mode=mode)
    place = f"/api/v1/sweeps/{swept.id}"
    sweep, report = (await client.get(place)).json(), (await client.get(f"{place}/report")).json()
    assert (sweep["state"], sweep["best"]["trial"], sweep["best"]["value"]) == (SweepState.SUCCEEDED, trial, value)
    assert report["best"] == sweep["best"]
    await services.store.configurations.create("digits", spec(**JOB, steps=None))
    refused = assert_problem(await client.post(f"{place}/promote", json={"configuration": "digits"}), 409, "CONFLICT")
    assert refused["detail"].startswith("no trial is complete, so there is nothing to promote")


async def test_one_that_was_stopped_by_hand_names_what_led_by_then(
    client: httpx2.AsyncClient, services: Any, clock: Clock
) -> None:
    swept = await Swept.created(services.store, clock, await leader(services.store))
    place = f"/sweeps/{swept.id}"
    await swept.begin(point(0.001))
    await swept.report(0, r10=0.5)
    assert (await client.get(f"/api/v1{place}")).json()["best"] is None
    stopped = (await client.post(f"/api/v1{place}/stop")).json()
    assert (stopped["best"]["trial"], stopped["best"]["value"]) == (0, 0.5)
    assert (await client.get(f"/api/v1{place}/report")).json()["best"] == stopped["best"]
    assert sweep_words.best(stopped) == "50 % (trial 0, not complete)"
    assert "trial 0</a>, not complete, at" in (await client.get(place)).text
    assert "not complete" in (await client.get("/sweeps")).text


async def test_one_that_was_stopped_before_any_report_names_none(
    client: httpx2.AsyncClient, services: Any, clock: Clock
) -> None:
    swept = await Swept.created(services.store, clock, await leader(services.store))
    await swept.begin(point(0.001))
    assert (await client.post(f"/api/v1/sweeps/{swept.id}/stop")).json()["best"] is None
