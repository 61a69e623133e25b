"""What the measurement of batches takes from a job's metrics, and how it sums runs up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.benchmarks import goodput_run
from tests.benchmarks.goodput import CASES, summary
from tests.benchmarks.goodput_run import Case, Run, reached
from workers.spec import parse_job_spec


def point(begin_s: float, step_s: float, accuracy: float | None = None) -> dict[str, Any]:
    """Of a step that began so long after the clock did."""
    values = {"step_s": step_s, "global_batch": 32.0}
    time = f"2026-01-01T00:00:{begin_s + step_s:06.3f}Z"
    return {"time": time, "values": values if accuracy is None else {**values, "eval.accuracy": accuracy}}


def a_run(side: str, seconds: float | None, seed: int = 0) -> Run:
    return Run(
        case="digits",
        side=side,
        seed=seed,
        seconds=seconds,
        samples=0,
        steps=0,
        best=0.9,
        trained_s=60.0,
        batches=[],
        noise_scale=None,
        judged=[],
        load_1min=0.0,
    )


def test_the_clock_runs_from_the_first_steps_begin_to_the_end_of_the_evaluation_that_meets_the_target() -> None:
    case = replace(CASES["digits"], target=0.9)
    points = [point(1.0, 0.5), point(1.5, 0.5, 0.8), point(3.0, 0.5, 0.95), point(4.25, 0.5)]
    seconds, num_steps = reached(case, points)
    assert (seconds, num_steps) == (pytest.approx(3.25), 3)
    assert reached(case, points[:2]) == (None, 2)
    falling = replace(case, is_rising=False, target=0.85)
    assert reached(falling, points)[1] == 2


def test_what_never_gets_there_is_told_and_is_neither_the_best_nor_the_slowest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = [a_run("goodput", seconds, seed) for seed, seconds in enumerate([4.0, 5.0, 6.0])]
    runs += [a_run("32", seconds, seed) for seed, seconds in enumerate([9.0, 10.0, None])]
    runs += [a_run("128", 4.0), a_run("512", None)]
    figures = summary("digits", runs)
    assert (figures["best"], figures["slowest"]) == ("128", "32")
    assert (figures["of_best"], figures["of_slowest"]) == (pytest.approx(1.25), pytest.approx(0.5))
    assert figures["missed"] == {"goodput": [], "32": [2], "128": [], "512": [0]}
    told = capsys.readouterr().out
    assert "512 never; 1 of 1 not within bounds, at best 0.9000 (seed 0)" in told


@pytest.mark.parametrize("case", CASES.values())
def test_all_sides_have_the_same_base_rate_and_evaluate_after_as_many_samples(case: Case) -> None:
    specs = [parse_job_spec(goodput_run.spec(case, side, 0)) for side in ("goodput", "16", "512")]
    assert {(spec.optimizer.lr, spec.optimizer.base_batch) for spec in specs} == {(case.lr, 32)}
    assert {spec.eval_every_steps * spec.batch.global_size for spec in specs} == {case.eval_samples}
