"""What the demonstration takes on, and what it says at its end."""

from __future__ import annotations

from typing import Any

import pytest

from service.cli.conclusion import conclude
from service.cli.demo import GLOBAL_BATCH, MAX_BATCHES, MOST_STEPS, amount
from service.cli.failures import FAILED

STEPS = 3


@pytest.mark.parametrize("samples_per_s", [5_000.0, 38_399.0, 38_401.0, 120_000.0, 190_000.0])
def test_it_lasts_as_long_as_asked_also_on_a_fast_machine(samples_per_s: float) -> None:
    steps, batch = amount(samples_per_s, 60.0)
    assert steps <= MOST_STEPS
    assert steps * batch / samples_per_s == pytest.approx(60.0, rel=0.01)


def test_no_machine_is_too_slow_or_too_fast_for_it() -> None:
    assert amount(1.0, 60.0) == (200, GLOBAL_BATCH)
    assert amount(1e9, 60.0) == (MOST_STEPS, GLOBAL_BATCH * MAX_BATCHES)


def ended(state: str, steps: list[int]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    progress = {"samples": STEPS * GLOBAL_BATCH, "steps": STEPS, "eval": {"accuracy": 0.98, "loss": None}}
    spec = {"steps": STEPS, "batch": {"global_size": GLOBAL_BATCH}}
    points = [{"step": step, "values": {"global_batch": float(GLOBAL_BATCH)}} for step in steps]
    return {"state": state, "spec": spec, "progress": progress}, points


def told(state: str, steps: list[int], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    job, points = ended(state, steps)
    exit_code = conclude(job, [], points, lambda: "it ran out of luck")
    return exit_code, capsys.readouterr().out


def test_a_job_that_succeeded_with_every_count_right_ends_it_well(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, lines = told("SUCCEEDED", [1, 2, 3], capsys)
    assert exit_code == 0
    assert "768 samples in 3 steps, each counted once; accuracy" in lines
    assert "loss" not in lines


def test_a_step_that_was_not_recorded_fails_it_though_the_job_succeeded(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, lines = told("SUCCEEDED", [1, 3], capsys)
    assert exit_code == FAILED
    assert "step 3 stands where 2 should" in lines
    assert "each counted once;" not in lines


def test_a_job_that_failed_fails_it_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, lines = told("FAILED", [1, 2, 3], capsys)
    assert exit_code == FAILED
    assert "it ran out of luck" in lines
