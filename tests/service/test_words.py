"""Words and numbers as people read them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service import timeline_words, words
from service.states import JobState
from workers.errors import Reason
from workers.plan import TimelineKind


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.5, "0.5"),
        (0.12345, "0.123"),
        (0.000012345, "1.23e-5"),
        (999.4, "999"),
        (999.6, "1k"),
        (12345, "12.3k"),
        (999_999, "1M"),
        (-1_234_567, "-1.23M"),
        (float("nan"), "not finite"),
    ],
)
def test_numbers_have_three_significant_digits(value: float | None, text: str) -> None:
    assert words.number(value) == text


def test_a_cost_that_may_have_been_less_is_told_as_the_most_that_it_was() -> None:
    spent = {"worker_s": 60.0, "amount": 3.0, "currency": "EUR"}
    assert words.cost({**spent, "is_upper_bound": True}) == "at most 3.00 EUR"
    assert words.cost({**spent, "is_upper_bound": False}) == "3.00 EUR"
    assert words.cost({**spent, "amount": 0.001, "is_upper_bound": True}) == "< 0.01 EUR"


@given(st.floats(1e-12, 1e17))
def test_a_number_as_shown_is_within_half_a_percent(value: float) -> None:
    text = words.number(value)
    factor = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}.get(text[-1], 1.0)
    assert float(text.rstrip("kMGTP")) * factor == pytest.approx(value, rel=5.1e-3)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (0.18, "0.18 s"),
        (9.96, "10 s"),
        (59.7, "1 min"),
        (130, "2 min 10 s"),
        (3600, "1 h"),
        (3900, "1 h 5 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations_are_words(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


@given(st.floats(0, 1e8))
def test_a_duration_never_claims_a_full_unit_as_its_rest(seconds: float) -> None:
    parts = words.duration(seconds).split()
    limits = {"s": 60, "min": 60, "h": 24, "d": 1e9}
    assert all(float(amount) < limits[unit] for amount, unit in zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0 %"), (0.001, "0.1 %"), (0.629, "62 %"), (0.9999, "99.9 %"), (1, "100 %")]
)
def test_a_hundred_percent_means_all(share: float, text: str) -> None:
    assert words.percent(share) == text


def row(kind: TimelineKind, **values: Any) -> dict[str, Any]:
    empty = {"actor": "controller", "reason": "", "before": {}, "after": {}, "cost_s": None, "steps_lost": None}
    return {"seq": 1, "step": 1200, "time": "", "kind": kind, **empty, **values}


LOST = {"workers": 2, "lost": [{"worker_id": "1.2", "rank": 1, "node_id": "a"}]}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            row(
                TimelineKind.BATCH,
                actor="pbt",
                reason="why",
                before={"global_batch": 64, "lr": 0.1},
                after={"global_batch": 128, "lr": 0.2},
            ),
            "Global batch 64 → 128, learning rate 0.1 → 0.2 by pbt: why",
        ),
        (
            row(
                TimelineKind.RESTORE, actor="pbt", reason="why", after={"donor": "job_x", "generation": 2}, steps_lost=0
            ),
            "Took over the state of job job_x: why; no step lost",
        ),
        (
            row(TimelineKind.CHECKPOINT, reason="why", after={"generation": 2}),
            "A checkpoint was asked for: why",
        ),
        (
            row(TimelineKind.WORKER_LOST, before=LOST, after={"workers": 1}, cost_s=0.18, steps_lost=0),
            "Worker 1 was lost on node a; went on with 1 of 2 after 0.18 s; no step lost",
        ),
        (
            row(TimelineKind.WORKER_LOST, before={"workers": 2}, after={"workers": 1}),
            "A worker was lost; went on with 1 of 2, being agreed now",
        ),
        (
            row(
                TimelineKind.RESIZE,
                actor="user",
                before={"workers": 1},
                after={"workers": 3},
                cost_s=0.21,
                steps_lost=0,
            ),
            "Grew from 1 to 3 workers by user; took 0.21 s; no step lost",
        ),
        (
            row(TimelineKind.RESTORE, reason="training from the checkpoint of step 300 after all workers were lost"),
            "Went on from the checkpoint of step 300 after all workers were lost",
        ),
        (
            row(TimelineKind.START, before={"workers": 0}, after={"workers": 2}, cost_s=0.0, steps_lost=0),
            "Training started with 2 workers",
        ),
        (
            row(TimelineKind.END, after={"workers": 0, "outcome": "paused"}, cost_s=0.0, steps_lost=0),
            "The job was paused at step 1,200",
        ),
        (
            row(TimelineKind.END, reason="failed: no such folder", after={"workers": 0, "outcome": "failed"}),
            "The job failed at step 1,200: no such folder",
        ),
        (
            row(TimelineKind.CHECKPOINT, reason="saving before the pause", after={"size_bytes": 1_000_000}),
            "Checkpoint at step 1,200, 1 MB: saving before the pause",
        ),
        (
            row(TimelineKind.CHECKPOINT, after={"size_bytes": 1_000_000}, cost_s=0.112, steps_lost=0),
            "Checkpoint at step 1,200, 1 MB; training held for 0.11 s",
        ),
        (
            row(TimelineKind.RESTORE, reason="training from the checkpoint of step 300", cost_s=2.5, steps_lost=37),
            "Went on from the checkpoint of step 300; took 2.5 s; 37 steps lost",
        ),
        (
            row(TimelineKind.WORKER_LOST, before=LOST, after={"workers": 1}, cost_s=1.5, steps_lost=1),
            "Worker 1 was lost on node a; went on with 1 of 2 after 1.5 s; 1 step lost",
        ),
        (
            row(TimelineKind.BATCH, actor="goodput", before={"global_batch": 128}, after={"global_batch": 256}),
            "Global batch 128 → 256 by goodput",
        ),
        (
            row(TimelineKind.BATCH, reason="out of memory", before={"micro_size": 6}, after={"micro_size": 3}),
            "Micro-batch 6 → 3: out of memory",
        ),
        (
            row(TimelineKind.BATCH, reason="in mid-exchange", before={"workers": 2}, after={"workers": 2}),
            "Micro-batch: in mid-exchange",
        ),
        (
            row(
                TimelineKind.BATCH,
                actor="shares",
                reason="worker 1.2 takes twice as long",
                before={"parts": [64, 64]},
                after={"parts": [85, 43], "expected_gain": 1.5},
            ),
            "Worker 1.2 takes twice as long",
        ),
        (
            row(
                TimelineKind.PROBATION,
                actor="shares",
                reason="parts 85 and 43 are 1.40 times as fast as 64 and 64",
                after={"parts": [85, 43], "gain": 1.4, "is_kept": False},
            ),
            "Parts 85 and 43 are 1.40 times as fast as 64 and 64",
        ),
        (
            row(
                TimelineKind.EXCHANGE,
                actor="communication",
                reason="a step of 1.1 s waits 1 s for gradients",
                before={"scheme": "none"},
                after={"scheme": "int4", "expected_gain": 5.6},
            ),
            "Gradients none → int4, on trial: a step of 1.1 s waits 1 s for gradients",
        ),
        (
            row(
                TimelineKind.EXCHANGE,
                actor="communication",
                reason="with int4 steps are only 0.90 times as fast as with none (expected: 1.10); taken back",
                before={"scheme": "int4"},
                after={"scheme": "none"},
            ),
            "Gradients int4 → none: with int4 steps are only 0.90 times as fast as with none (expected: 1.10); "
            "taken back",
        ),
        (
            row(TimelineKind.LIMIT, actor="shares", reason="worker 1.2 cannot be balanced away"),
            "Worker 1.2 cannot be balanced away",
        ),
    ],
)
def test_a_timeline_row_is_a_sentence(values: dict[str, Any], sentence: str) -> None:
    assert timeline_words.sentence(values) == sentence


@pytest.mark.parametrize("kind", TimelineKind)
def test_every_kind_of_timeline_row_has_words(kind: TimelineKind) -> None:
    told = timeline_words.sentence(row(kind, reason="because", before={"workers": 2}, after={"workers": 1}, cost_s=1.0))
    assert told[0].isupper()
    assert "_" not in told


def test_every_state_and_reason_has_words() -> None:
    assert set(words.STATE_WORDS) == set(JobState)
    assert set(words.REASON_WORDS) == set(Reason)
