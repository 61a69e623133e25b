"""What a job's model tells on its page: rows with ranges, what was never tried, and what is not known."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import httpx2
import pytest

from service.pages.batch import batch_view
from service.pages.foresight import batches_view, sizes_view
from service.records import Transition
from service.services import Services
from service.states import JobState
from tests.service.given import leader, placed, plan, record, snapshot, view
from workers.measures import Footprint, Forecast, Prediction


def prediction(workers: int, batch: int, told: float, error: float, measured: float | None = None) -> Prediction:
    return Prediction(
        num_workers=workers, global_batch=batch, samples_per_s=told, error=error, measured=measured,
        num_steps=0 if measured is None else 40,
    )  # fmt: skip


FORECAST = Forecast(
    num_workers=2,
    global_batch=64,
    sizes=(
        prediction(1, 64, 1000.0, 0.25),
        prediction(2, 64, 1800.0, 0.03, 1820.0),
        prediction(4, 64, 3000.0, 0.8),
    ),
    batches=(
        prediction(2, 32, 1500.0, 0.1, 1490.0),
        prediction(2, 64, 1800.0, 0.03, 1820.0),
        prediction(2, 128, 2100.0, 0.2),
    ),
)


def job(forecast: Forecast | None, current: int = 2) -> dict[str, Any]:
    told = None if forecast is None else asdict(forecast)
    return {"workers": {"min": 1, "max": 4, "current": current}, "observed": {"forecast": told}}


def test_each_size_has_its_range_and_says_where_nothing_was_tried() -> None:
    rows = sizes_view(job(FORECAST))["rows"]
    assert [(r["workers"], r["told"], r["is_now"], r["measured"]) for r in rows] == [
        (1, "1k", False, None),
        (2, "1.8k", True, 1820.0),
        (4, "3k", False, None),
    ]
    assert rows[0]["range"] == "607 to 1.65k"
    assert rows[0]["valuetext"] == "1 worker, about 1k samples a second, 607 to 1.65k, never tried"
    assert not rows[1]["valuetext"].endswith("never tried")


def test_a_range_without_end_leaves_the_bars_to_be_told_apart() -> None:
    rows = sizes_view(job(FORECAST))["rows"]
    assert rows[2]["high"] == "1000.0"
    assert float(rows[2]["bar"]) == pytest.approx(500.0)
    assert float(rows[0]["bar"]) == pytest.approx(500.0 / 3, abs=0.1)


def test_what_is_not_known_is_said_and_why() -> None:
    assert "a few more steps at this size" in sizes_view(job(None))["missing"]
    assert "nothing trains now" in sizes_view(job(None, current=0))["missing"]
    assert batches_view(None, 32, 10.0) is None


def test_progress_counts_what_samples_are_worth() -> None:
    told = batches_view(asdict(FORECAST), 32, 96.0)
    assert told is not None
    assert [row["worth"] for row in told["rows"]] == pytest.approx([1.0, 0.8, 128 / 224])
    assert [row["progress"] for row in told["rows"]] == pytest.approx([1500.0, 1440.0, 1200.0])
    unknown = batches_view(asdict(FORECAST), 32, None)
    assert unknown is not None
    assert [row["progress"] for row in unknown["rows"]] == [None] * 3
    assert unknown["chart"]["progress"] == ""
    assert len(told["chart"]["dots"]) == 2


def shown(footprint: Footprint | None, **load: Any) -> dict[str, Any]:
    worker = {**asdict(replace(view(), part=32, micro_size=16, footprint=footprint, **load)), "rank": 0}
    observed = {"plan": {"global_batch": 32}, "workers": [worker]}
    document = {"id": "job_1", "spec": {"batch": {"global_size": 32, "max_tokens": None}}, "observed": observed}
    [told] = batch_view(document, {"points": [], "keys": []}, [])["loads"]
    return dict(told)


def test_a_load_is_told_in_three_shares_with_the_memory_that_was_foreseen() -> None:
    held = Footprint(peak_bytes=500, limit_bytes=1000, fixed_bytes=100, sample_bytes=20.0)
    told = shown(held, busy_share=0.9, wire_share=0.25, wire_bytes_per_s=1e6)
    assert [told[what]["share"] for what in ("compute", "memory", "wire")] == [0.9, 0.5, 0.25]
    assert (told["expected"], told["expected_at"]) == (420.0, "420.0")


def test_a_load_that_nobody_measured_is_not_made_up() -> None:
    told = shown(None)
    assert [told[what] for what in ("compute", "memory", "wire", "expected", "expected_at")] == [None] * 5
    untried = shown(Footprint(peak_bytes=500))
    assert (untried["memory"], untried["expected"], untried["peak_bytes"]) == (None, None, 500)


@pytest.mark.anyio
async def test_the_page_of_a_running_job_shows_what_its_controller_foresees(
    client: httpx2.AsyncClient, services: Services
) -> None:
    fence = await leader(services.store)
    job = await placed(services.store, fence, workers={"min": 1, "max": 4}, batch={"global_size": 64})
    held = Footprint(peak_bytes=5 * 10**8, limit_bytes=10**9, fixed_bytes=10**8, sample_bytes=2e7)
    members = tuple(
        replace(view(f"1.{rank}", rank), part=32, micro_size=16, busy_share=0.9, wire_share=0.25, footprint=held)
        for rank in range(2)
    )
    records = [record(n, noise_scale=96.0 + n, global_batch=64.0) for n in range(1, 4)]
    seen = snapshot(job, records, workers=members, plan=plan(64), has_trained=True, forecast=FORECAST)
    await services.store.reconciler.fold(replace(seen, num_current=2), fence)
    await services.store.reconciler.transition(job, JobState.RUNNING, Transition(), fence)
    page = (await client.get(f"/jobs/{job.id}?tab=batch")).text
    for text in ("1.8k (1.7k to 1.91k)", "1.41k to 3.13k", "420 MB at 16", "100 MB and 20 MB a sample", "step 3"):
        assert text in page, text
    overview = (await client.get(f"/jobs/{job.id}")).text
    assert 'data-told="4 workers, about 3k samples a second, 606 to 14.9k, never tried"' in overview
    bare = snapshot(job, (), workers=members[:1], plan=plan(64), has_trained=True)
    await services.store.reconciler.fold(bare, fence)
    assert "is not known yet" in (await client.get(f"/jobs/{job.id}/parts/size_foreseen")).text
