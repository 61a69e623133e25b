"""What rounds cost each rank: stored within bounds, and shown as a map."""

from __future__ import annotations

import re

import pytest

from service.pages.heat import MAX_CELLS, heat_view
from service.pages.render import part
from service.rank_history import MAX_TIMES, AttemptSpan, thinned
from service.store.opening import Store
from tests.service.given import START_S, leader, placed, snapshot
from workers.measures import RankSpan

BEGIN = int(START_S)


def span(n: int, rank: int = 0, *, data_s: float = 0.1, rounds: int = 10, worker_id: str = "") -> RankSpan:
    return RankSpan(
        worker_id=worker_id or f"1.{rank + 1}",
        rank=rank,
        begin=BEGIN + 5 * n,
        width_s=5,
        num_rounds=rounds,
        step_s=1.0 * rounds,
        data_s=data_s * rounds,
        compute_s=0.5 * rounds,
        exposed_s=0.2 * rounds,
        optimizer_s=0.1 * rounds,
        memory_bytes=1000 + rank,
    )


def of_attempt(*spans: RankSpan) -> list[AttemptSpan]:
    return [AttemptSpan(attempt=1, span=each) for each in spans]


@pytest.mark.anyio
async def test_a_span_told_twice_is_stored_once_and_its_longer_form_stays(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    for told in ((span(0, rounds=2), span(0, 1)), (span(0, rounds=7), span(1)), (span(0, rounds=2),)):
        await store.reconciler.fold(snapshot(job, spans=told), fence)
    found = [each.span for each in await store.telemetry.rank_spans(job.id)]
    assert found == [span(0, rounds=7), span(0, 1), span(1)]


@pytest.mark.anyio
async def test_a_long_job_keeps_a_bounded_number_of_rows_and_every_round(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    most = 0
    for n in range(0, 1200, 40):
        told = [span(i, rank) for i in range(n, n + 40) for rank in range(2)]
        await store.reconciler.fold(snapshot(job, spans=tuple(told)), fence)
        most = max(most, len(await store.telemetry.rank_spans(job.id)))
    kept = [each.span for each in await store.telemetry.rank_spans(job.id)]
    assert most <= 2 * MAX_TIMES
    assert sum(s.num_rounds for s in kept) == 2 * 1200 * 10
    assert sum(s.data_s for s in kept) == pytest.approx(2 * 1200)
    assert kept[-1] == span(1199, 1)


def test_workers_that_come_and_go_are_merged_by_their_rank() -> None:
    told = [span(n, worker_id=f"1.{n}") for n in range(MAX_TIMES + 1)]
    kept = thinned(of_attempt(*told))
    assert len(kept) < MAX_TIMES
    assert sum(each.span.num_rounds for each in kept) == 10 * len(told)
    assert kept[0].span.worker_id != told[0].worker_id


def test_the_rank_that_holds_the_others_up_is_marked_by_more_than_its_colour() -> None:
    found = of_attempt(
        *(span(n, rank, data_s=0.4 if (n, rank) == (3, 2) else 0.1) for n in range(6) for rank in range(3))
    )
    view = heat_view("job_1", found, "data")
    assert view is not None
    marked = [(row["rank"], n) for row in view["rows"] for n, c in enumerate(row["cells"]) if c["is_peak"]]
    assert marked == [(2, 3)]
    assert view["rows"][2]["cells"][3]["words"] == "400 ms"
    assert [row["mean"] for row in view["rows"]] == ["100 ms", "100 ms", "150 ms"]
    text = bytes(part("job/heat.html", {"heat": view}).body).decode()
    assert re.search(
        r'<td class="l7 peak" title="Rank 2, [^"]*: 400 ms \(worker 1.3\)"><span class="away">400 ms, high', text
    )


def test_a_pause_is_shown_as_a_gap_and_a_missing_rank_as_no_step() -> None:
    view = heat_view("job_1", of_attempt(span(0), span(0, 1), span(100)), "")
    assert view is not None
    assert [c["gap"] for c in view["columns"]] == ["", "8 min 15 s"]
    assert view["rows"][1]["cells"][1] is None
    assert view["name"] == "busy"


def test_many_ranks_over_a_long_time_stay_few_cells() -> None:
    view = heat_view("job_1", of_attempt(*(span(n, rank) for n in range(300) for rank in range(100))), "memory")
    assert view is not None
    assert len(view["rows"]) * len(view["columns"]) <= MAX_CELLS
    assert view["num_left_out"] == 36
    assert heat_view("job_1", [], "") is None
