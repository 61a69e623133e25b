"""What the exchange of gradients takes, as it is told of one job and of all."""

from __future__ import annotations

import math

import httpx2
import pytest

from service.exchange import figures, in_words, is_exchanging, totals
from service.pages.tabs import system_view
from service.services import Services
from tests.service.given import leader, placed, record, snapshot
from tests.service.test_page_views import job

STEP = {
    "step_s": 0.01,
    "exchange_s": 0.004,
    "exposed_s": 0.001,
    "hidden_s": 0.002,
    "encode_s": 0.0005,
    "decode_s": 0.002,
    "wire_bytes": 500_000.0,
    "wire_ratio": 7.5,
}


def told(**values: float) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = system_view(job(), {"points": [{"values": {**STEP, **values}}]})["exchange"]
    return found


def test_figures_are_means_of_what_steps_tell() -> None:
    steps = [{"step_s": 1.0, "encode_s": None}, {"step_s": 3.0, "encode_s": 5.0}, {"step_s": math.nan, "loss": 9.0}]
    assert figures(steps) == {"step_s": 2.0, "encode_s": 5.0}


LONG, SHORT = ({**{key: num * value for key, value in STEP.items()}, "round_steps": num} for num in (25.0, 10.0))


def test_what_a_round_of_local_steps_takes_is_told_by_step() -> None:
    points = [{"values": {**values, "wire_ratio": 7.5}} for values in (LONG, SHORT)]
    found = system_view(job(), {"points": points})
    assert (found["step_s"], found["round_steps"]) == ("10 ms", 25)
    assert found["exchange"] == told()
    assert [(part["name"], part["seconds"]) for part in found["shares"]] == [
        *(("data", "0 ms"), ("compute", "0 ms"), ("exchange", "1 ms"), ("optimizer", "0 ms"), ("other", "9 ms")),
    ]
    assert figures([LONG, {"step_s": 0.11}])["step_s"] == pytest.approx(0.36 / 26)


def test_the_page_tells_shares_seconds_and_bytes() -> None:
    assert told() == [
        ("Gradient exchange", "40 %", "4 ms"),
        ("Exchange not overlapped", "10 %", "1 ms"),
        ("Exchange behind computing", "20 %", "2 ms"),
        ("Encoding gradients", "5 %", "500 µs"),
        ("Decoding gradients", "20 %", "2 ms"),
        ("Bytes sent a step", "500 kB", "7.5 times fewer than in fp32"),
    ]


def test_bytes_to_other_racks_are_told_beside_all() -> None:
    assert told(wire_bytes_across=125_000.0)[-2:] == [
        ("Bytes sent a step", "500 kB", "7.5 times fewer than in fp32"),
        ("Bytes sent to other racks a step", "125 kB", "25 % of them, by that worker"),
    ]
    before = {**STEP, "wire_bytes": 4e6, "wire_bytes_across": 1e6, "wire_ratio": 1.0}
    assert in_words(before, {**STEP, "wire_bytes_across": 1e5}).startswith(
        "a step sent 4 MB, then 500 kB, 7.5 times fewer than in fp32, to other racks 1 MB, then 100 kB, exchanged for"
    )
    assert "to other racks" not in in_words(before, STEP)


def test_of_groups_of_which_one_alone_tells_bytes_to_other_racks_no_share_is_told() -> None:
    alike = [{**STEP, "wire_bytes_across": 1e5}, {**STEP, "wire_bytes_across": 3e5}]
    assert figures(alike)["wire_bytes_across"] == 2e5
    assert "wire_bytes_across" not in figures([STEP, *alike])


@pytest.mark.anyio
async def test_the_tab_system_has_them_beside_the_time_of_a_step(
    client: httpx2.AsyncClient, services: Services
) -> None:
    fence = await leader(services.store)
    trained = await placed(services.store, fence)
    await services.store.reconciler.fold(snapshot(trained, [record(1, **STEP)]), fence)
    page = (await client.get(f"/jobs/{trained.id}?tab=system")).text
    assert '<dt>Decoding gradients</dt><dd class="wrap">20 % <small' in page
    assert '<dd class="wrap">500 kB <small class="soft">7.5 times fewer than in fp32</small>' in page
    assert "rounds of" not in page


@pytest.mark.anyio
async def test_where_points_are_rounds_of_several_steps_pages_say_so(
    client: httpx2.AsyncClient, services: Services
) -> None:
    fence = await leader(services.store)
    trained = await placed(services.store, fence)
    await services.store.reconciler.fold(snapshot(trained, [record(1, **LONG)]), fence)
    system = (await client.get(f"/jobs/{trained.id}?tab=system")).text
    assert "points, rounds of up to 25 steps each, shared out over their steps: 10 ms a step." in system
    metrics = (await client.get(f"/jobs/{trained.id}?tab=metrics")).text
    assert "A point is a round of up to 25 steps" in metrics


@pytest.mark.parametrize(
    ("ratio", "words"), [(0.98, "as many as in fp32"), (0.5, "2 times fp32's"), (1.9, "1.9 times fewer than in fp32")]
)
def test_bytes_are_told_against_those_of_fp32(ratio: float, words: str) -> None:
    assert told(wire_ratio=ratio)[-1] == ("Bytes sent a step", "500 kB", words)


def test_one_worker_exchanges_nothing_and_where_nobody_counts_bytes_that_is_said() -> None:
    assert told(wire_bytes=0.0) == []
    uncounted = {key: value for key, value in STEP.items() if key in ("step_s", "exchange_s")}
    found = system_view(job(), {"points": [{"values": uncounted}]})["exchange"]
    assert found == [("Gradient exchange", "40 %", "4 ms"), ("Bytes sent a step", "–", "nobody counts them here")]


def test_totals_are_of_workers_that_exchange() -> None:
    slow = {"step_s": 0.1, "exchange_s": 0.08, "exposed_s": 0.08, "wire_bytes": 1e6, "wire_ratio": 1.0}
    alone = {**STEP, "exchange_s": 0.0, "wire_bytes": 0.0}
    uncounted = {"step_s": 1.0, "exchange_s": 0.5, "exposed_s": 0.0}
    found = totals([(3, STEP), (1, slow), (4, alone), (4, uncounted), (0, STEP), (2, {})])
    assert found.bytes_per_s == pytest.approx(3 * 5e7 + 1e7)
    assert found.ratio == pytest.approx((3 * 5e7 * 7.5 + 1e7) / (3 * 5e7 + 1e7))
    assert found.shares == pytest.approx(
        {"exchange": 4.0 / 8, "exposed": 1.1 / 8, "hidden": 0.2, "encode": 0.05, "decode": 0.2}
    )
    assert found.seconds == pytest.approx(
        {"exchange": 2.092 / 8, "exposed": 0.083 / 8, "hidden": 0.002, "encode": 0.0005, "decode": 0.002}
    )


def test_what_was_sent_for_a_round_done_again_is_no_exchange_of_who_is_alone_since() -> None:
    alone = {"step_s": 1.0, "exchange_s": 0.0, "wire_bytes": 400.0, "redone_bytes": 400.0}
    told = figures([alone, {**alone, "redone_bytes": 0.0, "wire_bytes": 0.0}])
    assert told["wire_bytes"] == 0.0
    assert not is_exchanging(told)
    assert figures([{**alone, "wire_bytes": 500.0}])["wire_bytes"] == 100.0


def test_where_nobody_exchanges_there_are_no_shares() -> None:
    found = totals([(1, {**STEP, "wire_bytes": 0.0})])
    assert found.bytes_per_s == 0.0
    assert all(math.isnan(value) for value in (found.ratio, *found.seconds.values(), *found.shares.values()))
