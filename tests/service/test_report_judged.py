"""The report of a change that was on trial tells what it was judged to bring, as the timeline does."""

from __future__ import annotations

from dataclasses import replace

import httpx2
import pytest

from service.api.shapes import Report, ReportSection
from service.report import Near, sections
from service.services import Services
from tests.control.test_balance import line
from tests.control.uneven_job import UnevenJob
from tests.service.given import leader, placed, snapshot
from tests.service.test_report import entry, steps
from workers.plan import TimelineKind
from workers.status import RoundRecord, TimelineRow


def trained(job: UnevenJob, num_rounds: int) -> list[RoundRecord]:
    """What the next rounds tell."""
    found: list[RoundRecord] = []
    for _ in range(num_rounds):
        job.run(1)
        told = [record for status in job.desk.statuses.values() for record in status.records[-1:]]
        found += [replace(r, values={**r.values, "samples_per_s": r.samples / r.values["step_s"]}) for r in told]
    return found


async def report_of(
    client: httpx2.AsyncClient, services: Services, records: list[RoundRecord], rows: list[TimelineRow]
) -> list[ReportSection]:
    fence = await leader(services.store)
    job = await placed(services.store, fence)
    await services.store.reconciler.fold(snapshot(job, records, timeline=tuple(rows)), fence)
    return Report.model_validate((await client.get(f"/api/v1/jobs/{job.id}/report")).json()).sections


@pytest.mark.anyio
async def test_shares_that_a_slowdown_caused_are_not_compared_with_steps_from_before_it(
    client: httpx2.AsyncClient, services: Services
) -> None:
    job = UnevenJob(line(0.001), line(0.001))
    records = trained(job, 60)
    job.costs["1.2"] = line(0.1)
    records += trained(job, 60)
    rows = [row for row in job.rows if row.actor == "shares"]
    verdict = next(row for row in rows if row.kind is TimelineKind.PROBATION)
    assert verdict.after["gain"] > 10
    section = next(found for found in await report_of(client, services, records, rows) if found.kind == "batch")
    told = (section.before, section.after, section.gain, section.num_measured)
    after = verdict.after
    assert told == (verdict.before["samples_per_s"], after["samples_per_s"], after["gain"], after["num_steps"])
    assert section.low is not None
    assert section.high is not None
    assert section.low <= after["gain"] <= section.high
    assert f"as judged on trial by {after['num_steps']} steps" in section.evidence


BATCHES: dict[str, dict[str, float]] = {
    "before": {"global_batch": 32},
    "after": {"global_batch": 96, "noise_scale": 96.0, "expected_gain": 1.5},
}


def test_a_batch_gains_as_judged_and_one_that_was_not_judged_by_its_steps() -> None:
    found = {**BATCHES["after"], "samples_per_s": 210.0, "gain": 1.4, "error": 0.1, "num_steps": 47}
    verdict = entry(4, 160.0, "probation", before={**BATCHES["before"], "samples_per_s": 100.0}, after=found)
    back = entry(2, 110.0, "batch", before={"global_batch": 96}, after={"global_batch": 32})
    rows = [entry(1, 100.0, "batch", **BATCHES), back, entry(3, 120.0, "batch", **BATCHES), verdict]
    near = {1: Near(steps(60, 40, 300, global_batch=32), steps(101, 40, 300, global_batch=96))}
    first, _, second = sections(rows, near)
    assert first["gain"] == pytest.approx(2 / 3)
    assert [second[key] for key in ("low", "gain", "high", "expected")] == pytest.approx([1.2, 1.4, 1.6, 1.5])
    assert "100 and 210 samples a second, each worth 0.67 times as much" in second["evidence"]
