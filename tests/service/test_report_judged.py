"""The report of a change that was on trial tells what it was judged to bring, as the timeline does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx2
import pytest

from service.api.shapes import Report, ReportSection
from service.loss_evidence import loss_in_words
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


def test_newcomers_that_came_one_by_one_gain_as_they_were_judged_together() -> None:
    one, two = (
        {"before": {"workers": before}, "after": {"workers": after, "expected_gain": after / before}}
        for before, after in ((2, 3), (3, 4))
    )
    speeds = {"samples_per_s": 100.0}, {"samples_per_s": 180.0, "gain": 1.8, "error": 0.05, "num_steps": 30}
    judged = {"before": {"workers": 2, **speeds[0]}, "after": {"workers": 4, "expected_gain": 2.0, **speeds[1]}}
    rows = [entry(1, 100.0, **one), entry(2, 101.0, **two), entry(3, 130.0, "probation", **judged)]
    first, second = sections(rows, {})
    assert [first[key] for key in ("name", "gain", "expected")] == ["Workers 2 → 3", None, 1.5]
    assert [second[key] for key in ("name", "gain", "expected", "num_measured")] == ["Workers 2 → 4", 1.8, 2.0, 30]


@pytest.mark.parametrize("is_open", [False, True])
def test_a_scheme_gains_as_judged_between_two_stretches_without_it_and_nothing_where_the_link_changed(
    is_open: bool,
) -> None:
    """What was before is in force again while it is on trial; the steps before it may be of another link."""
    names: dict[str, dict[str, Any]] = {"before": {"scheme": "none"}, "after": {"scheme": "int4"}}
    back: dict[str, dict[str, Any]] = {"before": names["after"], "after": {"scheme": "none", "is_again": True}}
    found = {"scheme": "int4", "samples_per_s": 210.0, "gain": 1.1, "error": 0.02, "num_steps": 40}
    judged = {**found, "is_judged": False} if is_open else found
    verdict = entry(3, 130.0, "probation", before={**names["before"], "samples_per_s": 180.0}, after=judged)
    rows = [entry(1, 100.0, "exchange", **names), entry(2, 120.0, "exchange", **back), verdict]
    near = {
        1: Near(steps(60, 40, 90), steps(101, 19, 210)),
        2: Near(steps(101, 19, 210), steps(121, 9, 190)),
    }
    [section] = sections(rows, near)
    told = [None] * 3 if is_open else pytest.approx([1.06, 1.1, 1.14])
    assert [section[key] for key in ("low", "gain", "high")] == told
    assert (section["before"], section["after"], section["num_measured"]) == (180.0, 210.0, 40)
    assert f"as {'seen' if is_open else 'judged'} on trial by 40 steps" in section["evidence"]
    [section] = sections(rows, {})  # steps that nobody has any longer: of a loss is known what paired runs showed
    assert f"; {loss_in_words('int4')}; room" in section["evidence"]
