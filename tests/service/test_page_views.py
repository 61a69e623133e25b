"""What pages show, as pure values."""

from __future__ import annotations

from typing import Any

import pytest

from service.logs import LogText
from service.pages.job import actions_view, size_view, timeline_view
from service.pages.jobs import Filters, main_metric, spark_points
from service.pages.remedies import remedies_view
from service.pages.render import html, login_page
from service.pages.tabs import NUM_LOG_LINES, attempts_view, logs_view, system_view
from service.states import JobState, Move, Verb, command

SWEEP = f"sweep_{'0' * 26}"


def job(**values: Any) -> dict[str, Any]:
    return {
        "id": "job_1",
        "name": "digits",
        "state": "RUNNING",
        "attempt": 1,
        "spec": {"checkpoint": {"metric": None}},
        "progress": {"eval": {}},
        "workers": {"min": 1, "max": 4, "current": 2, "desired": 2},
        "observed": {"pinned": None},
        **values,
    }


@pytest.mark.parametrize(
    ("scheme", "options", "told", "words"),
    [
        (
            *("topk", {"fraction": 0.1, "quantise": "int8"}, "topk, fraction 0.1, quantise int8"),
            " By topk the largest 10 % of gradients travel, their values as int8.",
        ),
        (
            *("powersgd", {"rank": 2}, "powersgd, rank 2"),
            " By powersgd each matrix travels as two thin factors of rank 2.",
        ),
        ("bf16", {"across": "int4", "bucket_mib": 4}, "bf16 across int4 in buckets of 4 MiB", ""),
        ("int4", {"dense_first": 3, "bucket_mib": 4}, "int4 after 3 dense in buckets of 4 MiB", ""),
    ],
)
def test_a_scheme_is_told_with_its_options(scheme: str, options: dict[str, object], told: str, words: str) -> None:
    exchange = {"scheme": scheme, "options": options, "why": "asked for in the spec"}
    choices = system_view(job(observed={"plan": {"exchange": exchange}}), {"points": []})["choices"]
    assert dict(choices)["Gradient exchange"] == f"{told} (asked for in the spec){words}"


def test_filters_keep_their_address() -> None:
    filters = Filters(state="RUNNING", q="a b", labels=("team=vision&x",), page_token="tok")
    assert filters.url == "/jobs?state=RUNNING&q=a+b&label=team%3Dvision%26x&page_token=tok"
    assert filters.with_state("") == "/jobs?q=a+b&label=team%3Dvision%26x"
    assert Filters().url == "/jobs"


def test_a_label_typed_into_the_search_is_a_label() -> None:
    query = Filters(q="digits team=vision").query()
    assert query.search == "digits"
    assert query.labels == ("team=vision",)


def test_a_curve_fills_its_box() -> None:
    points = [tuple(map(float, p.split(","))) for p in spark_points([3.0, 1.0, 2.0]).split()]
    assert points == [(0.0, 1.0), (40.0, 23.0), (80.0, 12.0)]
    assert spark_points([1.0]) == ""
    assert spark_points([5.0, 5.0]) == "0.0,23.0 80.0,23.0"


@pytest.mark.parametrize(
    ("chosen", "evaluated", "key"),
    [
        (None, {}, "loss"),
        (None, {"loss": 1.0, "accuracy": 0.5}, "eval.accuracy"),
        ("eval.loss", {"loss": 1.0, "accuracy": 0.5}, "eval.loss"),
        ("eval.f1", {}, "loss"),
    ],
)
def test_the_main_metric_is_the_one_that_was_evaluated(
    chosen: str | None, evaluated: dict[str, float], key: str
) -> None:
    assert main_metric(job(spec={"checkpoint": {"metric": chosen}}, progress={"eval": evaluated})) == key


@pytest.mark.parametrize("state", JobState)
def test_only_legal_actions_have_a_button(state: JobState) -> None:
    shown = {action["verb"] for action in actions_view(job(state=state))} - {"delete"}
    assert shown == {verb for verb in Verb if isinstance(command(verb, state, 1), Move)}


@pytest.mark.parametrize("labels", [{"sweep": SWEEP, "trial": "1"}, {"promotion": SWEEP}])
def test_what_a_sweep_has_counted_is_not_offered_to_be_retried(labels: dict[str, str]) -> None:
    of_sweep = job(state="FAILED", reason="USER_ERROR", spec={"labels": labels})
    assert [action["verb"] for action in actions_view(of_sweep)] == ["delete"]
    assert remedies_view(of_sweep, []) == []


def test_what_loses_something_asks_first() -> None:
    actions = [a for state in JobState for a in actions_view(job(state=state))]
    asking = {a["verb"] for a in actions if a["ask"]}
    assert asking == {"cancel", "delete", "retry"}
    assert all(a["lost"] for a in actions if a["ask"])
    assert all(a["origin"] == "start" for a in actions if a["verb"] == "retry" and a["ask"])


@pytest.mark.parametrize(
    ("workers", "headline"),
    [
        ({"current": 2, "desired": 2}, "2 workers train"),
        ({"current": 1, "desired": 1}, "1 worker trains"),
        ({"current": 2, "desired": 3}, "From 2 to 3 workers"),
        ({"current": 0, "desired": 2}, "No worker trains now"),
    ],
)
def test_the_size_says_what_is_and_what_is_wanted(workers: dict[str, int], headline: str) -> None:
    view = size_view(job(workers={"min": 1, "max": 4, **workers}), [])
    assert view is not None
    assert view["headline"] == headline


def test_of_a_worker_that_has_not_answered_yet_it_is_not_said_that_it_has_a_place() -> None:
    view = size_view(job(workers={"min": 1, "max": 4, "current": 1, "desired": 2}, observed={"num_pending": 1}), [])
    assert view is not None
    assert view["detail"] == "1 worker on the way, or waiting for room; training goes on meanwhile."


def test_an_ended_job_has_no_size() -> None:
    assert size_view(job(state="SUCCEEDED"), []) is None


def test_checkpoints_do_not_push_changes_out_of_sight() -> None:
    rows: list[dict[str, Any]] = [
        {"seq": n, "step": n, "time": "", "kind": kind, "reason": "", "actor": ""}
        for n, kind in enumerate(["start", "resize", *["checkpoint"] * 20], 1)
    ]
    rows[-1]["cost_s"] = 0.112
    view = timeline_view(rows)
    assert view[0]["sentence"] == "Checkpoint at step 22; training held for 0.11 s"
    assert [row["seq"] for row in view] == list(range(22, 0, -1))
    assert [row["seq"] for row in view if row["is_told"]] == [22, 2, 1]


def lines(view: dict[str, Any]) -> list[str]:
    return [line["text"] for line in view["lines"]]


def test_the_first_error_is_shown_even_when_it_is_long_past() -> None:
    text = "\n".join([*["fine"] * 50, "[rank 1] Traceback (most recent call last):", *["more"] * 2000])
    view = logs_view(LogText(text, 0), job(), "", "")
    assert len(view["lines"]) == NUM_LOG_LINES
    first = [line["text"] for line in view["lines"] if line["is_first"]]
    assert first == ["[rank 1] Traceback (most recent call last):"]


def test_a_log_without_an_error_shows_its_end() -> None:
    view = logs_view(LogText("\n".join(f"line {n}" for n in range(600)), 0), job(), "", "")
    assert lines(view)[-1] == "line 599"
    assert not view["has_error"]


def test_attempts_are_told_from_transitions() -> None:
    steps = [("QUEUED", 0), ("STARTING", 1), ("RUNNING", 1), ("FAILED", 1), ("QUEUED", 1), ("STARTING", 2)]
    events = [
        {"time": f"2026-01-01T00:00:{n:02d}.000Z", "attempt": attempt, "to": to, "reason": None}
        for n, (to, attempt) in enumerate(steps)
    ]
    found = attempts_view(events)
    assert [(a["number"], a["state"], a["lasted_s"]) for a in found] == [(2, "STARTING", None), (1, "FAILED", 2.0)]


def test_user_content_is_escaped() -> None:
    hostile = '"><script>alert(1)</script>'
    for answer in (
        login_page(hostile, hostile),
        html("problem.html", {"title": hostile, "detail": hostile, "request_id": hostile, "is_public": True}),
    ):
        assert b"<script>alert" not in bytes(answer.body)
        assert b"&#34;&gt;&lt;script&gt;" in bytes(answer.body)
