"""What each change did: the arithmetic, and the report of a job with a long history over HTTP."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from typing import Any

import httpx2
import pytest

from service.api.shapes import Report, ReportSection
from service.loss_evidence import loss_in_words
from service.records import Point, TimelineEntry
from service.report import NUM_POINTS, Near, is_judged, sections
from service.services import Services
from service.words import gain
from tests.service.given import START_S, leader, placed, record, row, snapshot
from tests.service.query_plans import bad_steps, noted_statements, num_rows
from workers.measures import COMPARED, Compared, compared
from workers.plan import TimelineKind
from workers.status import RoundRecord, TimelineRow


def entry(seq: int = 1, time: float = 100.0, kind: str = "resize", **sides: Any) -> TimelineEntry:
    before, after = sides.get("before", {"workers": 1}), sides.get("after", {"workers": 2, "expected_gain": 1.8})
    return TimelineEntry(
        seq=seq, attempt=1, changed=1, key=f"k{seq}", kind=kind, time=time, step=50, actor="scaling", reason="room",
        before=before, after=after, cost_s=0.1, steps_lost=0,
    )  # fmt: skip


def point(time: float, speed: float, **values: float) -> Point:
    return Point(round(time), round(time), time, {"samples_per_s": speed, **values}, 1)


def steps(begin: float, num: int, speed: float, noise: float = 0.0, **values: float) -> list[Point]:
    rng = random.Random(begin)
    return [point(begin + i, speed * (1 + noise * rng.uniform(-1, 1)), **values) for i in range(num)]


def test_a_gain_is_the_ratio_of_medians_with_bounds_that_hold_the_true_one() -> None:
    near = Near(steps(60, 40, 100, 0.2, workers=1), steps(101, 40, 180, 0.2, workers=2))
    [section] = sections([entry()], {1: near})
    assert section["name"] == "Workers 1 → 2"
    assert section["low"] < 1.8 < section["high"]
    assert section["high"] - section["low"] < 0.5
    assert section["gain"] == pytest.approx(section["after"] / section["before"])
    assert (section["num_measured"], section["expected"]) == (78, 1.8)
    assert "medians of 40 steps before and 38 after" in section["evidence"]
    assert gain(section).startswith("1.")


def test_where_points_are_of_several_steps_rounds_are_counted() -> None:
    near = Near(steps(60, 10, 100, workers=1, round_steps=25), steps(101, 10, 180, workers=2, round_steps=25))
    [section] = sections([entry()], {1: near})
    assert "medians of 10 rounds before and 8 after" in section["evidence"]


def test_steps_under_another_plan_than_the_two_of_a_change_are_left_out() -> None:
    slow_to_agree = steps(101, 5, 100, workers=1)
    near = Near(steps(90, 10, 100, workers=1), [*slow_to_agree, *steps(106, 10, 200, workers=2)])
    [section] = sections([entry()], {1: near})
    assert (section["gain"], section["low"], section["high"], section["num_measured"]) == (2.0, 2.0, 2.0, 18)


def test_another_scheme_is_told_with_what_it_did_to_bytes_and_waits() -> None:
    dense = {"step_s": 0.5, "exchange_s": 0.4, "exposed_s": 0.3, "encode_s": 0.0, "decode_s": 0.0}
    sent = {"wire_bytes": 4e6, "wire_ratio": 1.0}
    coded = {
        **dense,
        "exchange_s": 0.2,
        "exposed_s": 0.1,
        "encode_s": 0.02,
        "decode_s": 0.03,
        "wire_bytes": 5e5,
        "wire_ratio": 8.0,
    }
    change = entry(1, 100.0, "exchange", before={"scheme": "none"}, after={"scheme": "int4"})
    of_others = {"step_s": 9.0, "exchange_s": 9.0, "exposed_s": 9.0}
    near = Near(steps(60, 40, 100, **dense, **sent), [*steps(101, 2, 200, **of_others), *steps(103, 8, 200, **coded)])
    [section] = sections([change], {1: near})
    assert section["evidence"] == (
        "medians of 40 steps before and 8 after: 100 and 200 samples a second; a step sent 4 MB, then 500 kB, 8 times "
        "fewer than in fp32, exchanged for 80 %, then 40 % of its time, waited 300 ms, then 100 ms for gradients, "
        f"encoded for 0 ms, then 20 ms, decoded for 0 ms, then 30 ms; {loss_in_words('int4')}; room"
    )
    [section] = sections([change], {1: Near(steps(60, 40, 100, **dense), steps(101, 10, 200, **dense))})
    assert "a step exchanged for 80 %, then 80 % of its time, waited 300 ms, then 300 ms for" in section["evidence"]
    [section] = sections([entry()], {1: near})
    assert "sent" not in section["evidence"]


@pytest.mark.parametrize(
    ("scheme", "told"),
    [
        ("none in buckets of 4 MiB", "lossless, as nothing is rounded"),
        ("none across none", "lossless, as nothing is rounded"),
        ("bf16 across int4", "near_lossless by its formats, and was not measured in paired runs"),
        ("int8", "near_lossless: in paired runs of two ranks (5 seeds, 95 % intervals) losses ended -0.4 ± 0.9 %"),
        ("powersgd in buckets of 1 MiB", "lossy by its formats, and was not measured in paired runs"),
    ],
)
def test_a_scheme_is_told_with_its_class_of_loss_and_the_losses_beside_the_change(scheme: str, told: str) -> None:
    change = entry(1, 100.0, "exchange", before={"scheme": "fp16"}, after={"scheme": scheme})
    [section] = sections([change], {1: Near(steps(60, 40, 100, loss=0.5), steps(101, 10, 200, loss=0.25))})
    assert f"; {scheme} counts as {told}" in section["evidence"]
    assert section["evidence"].endswith("; median losses 0.5 and 0.25; room")


def test_steps_of_fewer_workers_since_one_was_lost_tell_nothing_of_another_scheme() -> None:
    change = entry(1, 100.0, "exchange", before={"scheme": "none"}, after={"scheme": "int4", "expected_gain": 5.0})
    tried, alone = steps(101, 12, 50, workers=2), steps(113, 40, 2000, workers=1)
    near = Near([*steps(60, 20, 2000, workers=1), *steps(80, 20, 10, workers=2)], [*tried, *alone])
    [section] = sections([change], {1: near})
    assert (section["name"], section["gain"], section["num_measured"]) == ("Gradients none → int4", 5.0, 30)


def test_steps_in_which_micro_batches_were_on_trial_are_left_out() -> None:
    trial = steps(101, 9, 50, workers=2, micro_batch=8)
    near = Near(
        steps(90, 10, 100, workers=1, micro_batch=16), [*trial, *steps(110, 12, 200, workers=2, micro_batch=16)]
    )
    [section] = sections([entry()], {1: near})
    assert (section["gain"], section["num_measured"]) == (2.0, 20)


def test_a_change_is_measured_from_the_one_before_to_the_one_after() -> None:
    batch = {"before": {"global_batch": 32}, "after": {"global_batch": 64}}
    rows = [entry(1, 100.0), entry(2, 120.0, "batch", **batch)]
    middle = steps(101, 19, 200, workers=2, global_batch=32)
    last = steps(121, 19, 300, workers=2, global_batch=64)
    first = steps(60, 40, 100, workers=1, global_batch=32)
    near = {1: Near(first, [*middle, *last]), 2: Near([*first, *middle], last)}
    told = sections(rows, near)
    assert [(s["name"], s["gain"], s["before"], s["after"]) for s in told] == [
        ("Workers 1 → 2", 2.0, 100, 200),
        ("Global batch 32 → 64", 1.5, 200, 300),
    ]


def test_a_batch_that_follows_the_noise_gains_by_what_its_samples_are_worth() -> None:
    change = entry(kind="batch", before={"global_batch": 32}, after={"global_batch": 96, "noise_scale": 96.0})
    [section] = sections([change], {1: Near(steps(60, 40, 100, global_batch=32), steps(101, 40, 200, global_batch=96))})
    assert (section["before"], section["after"]) == (100, 200)
    assert section["gain"] == section["low"] == pytest.approx(2 * 128 / 192)
    assert "each worth 0.67 times as much" in section["evidence"]


def test_what_was_not_measured_enough_is_told_without_a_figure() -> None:
    [section] = sections([entry()], {1: Near(steps(90, 10, 100), steps(101, 4, 200))})
    assert (section["gain"], section["low"], section["high"]) == (None, None, None)
    assert section["evidence"].startswith("10 steps before and 2 after, which is too few to tell")
    assert gain(section) == "–"
    assert sections([entry()], {})[0]["gain"] is None


def test_steps_whose_micro_batches_go_by_length_all_count() -> None:
    before, after = (
        [point(begin + i, speed, workers=n, micro_batch=8.0 + i, useful_tokens=0.9) for i in range(20)]
        for begin, speed, n in ((70, 100, 1), (101, 200, 2))
    )
    [section] = sections([entry()], {1: Near(before, after)})
    assert (section["gain"], section["num_measured"]) == (2.0, 38)


def took(told: Compared | None) -> dict[str, Any]:
    assert told is not None
    return asdict(told)


def test_a_micro_batch_is_compared_with_the_largest_that_was_tried() -> None:
    after = {"micro_size": 16, "seconds_a_sample": {"8": 2e-3, "16": 1e-3, "64": 1.5e-3}}
    told = took(compared("sample", [1.5e-3, 1.6e-3], [1e-3, 1.0667e-3]))
    [section] = sections([entry(kind="batch", before={}, after={**after, COMPARED: told})], {})
    assert (section["name"], section["num_measured"]) == ("Micro-batch 16 instead of 64", 4)
    assert section["gain"] == pytest.approx(1.5, rel=1e-3)
    assert (section["low"], section["high"]) == (None, None)  # too few rounds to tell
    assert not is_judged(entry(kind="batch", before={}, after=after))
    assert not is_judged(entry(kind="batch", before={"micro_size": 8}, after={"micro_size": 4}))
    assert not is_judged(entry(kind="checkpoint", before={}, after={}))


def test_what_a_worker_tried_in_turns_is_told_with_its_spread() -> None:
    for before, after, name in (
        ({"loaders": "inline"}, {"loaders": "a reading thread"}, "Samples read: inline → a reading thread"),
        ({"micro_tokens": 500}, {"micro_tokens": 4000}, "Passes of up to 500 → 4000 padded tokens"),
    ):
        unit = "sample" if "loaders" in after else "token"
        told = took(compared(unit, [3e-3, 2.7e-3, 3.3e-3], [1e-3, 1e-3, 1e-3]))
        [section] = sections([entry(kind="batch", before=before, after={**after, COMPARED: told})], {})
        doubt = 2 * 1.2533 * 1.4826 * 0.1 / 3**0.5
        assert section["name"] == name
        assert section["before"] == (pytest.approx(1000 / 3) if unit == "sample" else None)
        bounds = section["low"], section["gain"], section["high"]
        assert bounds == pytest.approx((3 * (1 - doubt), 3.0, 3 * (1 + doubt)))
        assert section["num_measured"] == 6
    assert compared("sample", [], [1.0]) is None


def told_at(number: int, speed: float, workers: int) -> RoundRecord:
    return replace(record(number, samples_per_s=speed, workers=workers), time=START_S + number)


@pytest.mark.anyio
async def test_the_report_of_a_long_job_reads_only_the_steps_around_its_changes(
    client: httpx2.AsyncClient, services: Services
) -> None:
    fence = await leader(services.store)
    job = await placed(services.store, fence)
    change = replace(row("plan/1/2", cost_s=0.1), time=START_S + 600.5, step=600, kind=TimelineKind.RESIZE)
    # Thinned here and there, as buffers that nobody fetched are.
    rounds = [n for n in range(1, 1001) if n % 7 or n > 900]
    records = [told_at(n, 100.0 if n <= 600 else 150.0, 1 if n <= 600 else 2) for n in rounds]
    await services.store.reconciler.fold(snapshot(job, records, timeline=(change,)), fence)
    answer = await client.get(f"/api/v1/jobs/{job.id}/report")
    [section] = Report.model_validate(answer.json()).sections
    assert (section.gain, section.before, section.after) == (1.5, 100.0, 150.0)
    assert section.num_measured == 2 * NUM_POINTS - 2
    engine = await services.store.database.read(lambda conn: conn.engine)

    async def read() -> int:
        with noted_statements(engine) as statements:
            await services.telemetry.report(job.id)
        assert await services.store.database.read(lambda conn: bad_steps(conn, statements)) == []
        return await services.store.database.read(lambda conn: num_rows(conn, statements))

    before = await read()
    more = [told_at(n, 150.0, 2) for n in range(1001, 3001)]
    await services.store.reconciler.fold(snapshot(job, more), fence)
    assert await read() <= before + 2  # two more halvings
    page = (await client.get(f"/jobs/{job.id}?tab=report")).text
    assert "Workers 1 → 2" in page
    assert "1.50 (1.50 to 1.50)" in page


@pytest.mark.anyio
async def test_steps_that_ran_while_a_change_was_agreed_count_as_before_it(
    client: httpx2.AsyncClient, services: Services
) -> None:
    """Of other parts no step tells; a row is written when they are decided, and many short steps earlier."""
    fence = await leader(services.store)
    job = await placed(services.store, fence)
    records = [told_at(n, 100.0 if n <= 540 else 150.0, 2) for n in range(1, 701)]
    decided = replace(
        row("plan/1/2", kind=TimelineKind.BATCH),
        time=START_S + 500.5,
        actor="shares",
        before={"parts": [16, 16]},
        after={"parts": [24, 8]},
    )

    async def told(change: TimelineRow) -> ReportSection:
        await services.store.reconciler.fold(snapshot(job, records, timeline=(change,)), fence)
        [section] = Report.model_validate((await client.get(f"/api/v1/jobs/{job.id}/report")).json()).sections
        return section

    assert (await told(decided)).gain == 1.0  # by the clock, as nobody knows yet when it came into force
    section = await told(replace(decided, step=540, cost_s=0.0))
    assert (section.gain, section.before, section.after) == (1.5, 100.0, 150.0)
    assert section.num_measured == 2 * NUM_POINTS - 2


@pytest.mark.anyio
@pytest.mark.parametrize("asked", ["int8", "none", "auto"])
async def test_an_exchange_that_the_job_asks_for_is_told_by_its_newest_steps_without_a_gain(
    asked: str, client: httpx2.AsyncClient, services: Services
) -> None:
    fence = await leader(services.store)
    job = await placed(services.store, fence, communication=asked)
    of_step = {"step_s": 0.5, "exchange_s": 0.2, "exposed_s": 0.1, "wire_ratio": 4.0, "wire_bytes": 1e6}
    records = [replace(told_at(n, 100.0, 2), values={"samples_per_s": 100.0, **of_step}) for n in range(1, 21)]
    await services.store.reconciler.fold(snapshot(job, records), fence)
    found = Report.model_validate((await client.get(f"/api/v1/jobs/{job.id}/report")).json()).sections
    if asked != "int8":
        assert found == []
        return
    [section] = found
    assert (section.name, section.actor) == ("Gradients int8, as asked for", "user")
    assert (section.before, section.after, section.gain, section.num_measured) == (None, 100.0, None, 20)
    assert section.evidence == (
        "the job asks for it and has no steps without: `communication: auto` would try both; a step sent 1 MB, 4 times "
        f"fewer than in fp32, exchanged for 40 % of its time, waited 100 ms for gradients; {loss_in_words('int8')}"
    )
    assert "as asked for" in (await client.get(f"/jobs/{job.id}?tab=report")).text


@pytest.mark.anyio
async def test_what_is_asked_for_between_racks_alone_is_told_too(
    client: httpx2.AsyncClient, services: Services
) -> None:
    fence = await leader(services.store)
    job = await placed(services.store, fence, communication={"scheme": "none", "across": "int4"})
    of_step = {"samples_per_s": 100.0, "step_s": 0.5, "exchange_s": 0.2, "exposed_s": 0.1, "wire_bytes": 1e6}
    records = [replace(told_at(n, 100.0, 2), values=of_step) for n in range(1, 21)]
    await services.store.reconciler.fold(snapshot(job, records), fence)
    [section] = Report.model_validate((await client.get(f"/api/v1/jobs/{job.id}/report")).json()).sections
    assert section.name == "Gradients none across int4, as asked for"


@pytest.mark.anyio
async def test_a_job_that_has_not_begun_has_an_empty_report(client: httpx2.AsyncClient, services: Services) -> None:
    job = await placed(services.store, await leader(services.store))
    assert (await client.get(f"/api/v1/jobs/{job.id}/report")).json() == {"sections": []}
    assert "Nothing has been changed yet" in (await client.get(f"/jobs/{job.id}?tab=report")).text
    assert (await client.get("/api/v1/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV/report")).status_code == 404
