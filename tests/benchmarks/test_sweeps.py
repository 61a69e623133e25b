"""The sweeps that are replayed over curves, and what a measurement takes from a file of results."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.benchmarks.figures import append_result
from tests.benchmarks.sweeps import earlier
from tests.benchmarks.sweeps_grid import EPOCHS, POINTS, Curves, read_curves
from tests.benchmarks.sweeps_promotion import REDUCTION, replay, truth_of
from tests.benchmarks.sweeps_setting import Outcome, steady_ms
from tuning.trial import TrialState


def curves(seed: int = 0) -> Curves:
    """The later a point comes in the grid, the better it is, from the first epoch on."""
    worth = {point: number / len(POINTS) for number, point in enumerate(POINTS)}
    return Curves(seed=seed, accuracies={point: (worth[point],) * EPOCHS for point in POINTS})


@pytest.mark.parametrize("promotes", [True, False])
def test_a_replayed_sweep_spends_its_epochs_and_its_winner_is_the_best_it_trained_to_the_end(promotes: bool) -> None:
    sweep = replay(curves(), 0, promotes=promotes)
    found = sweep.winners([30, 120])
    trials = sweep.trials.values()
    assert sum(len(trial.reports) for trial in trials) == sweep.num_epochs == 120
    kept = TrialState.WAITING if promotes else TrialState.PRUNED
    assert {trial.state for trial in trials} == {TrialState.RUNNING, TrialState.COMPLETE, kept}
    truth, complete = truth_of([curves(1), curves(2)]), [t for t in trials if t.state is TrialState.COMPLETE]
    ranks = {budget: truth.rank(point) for budget, point in found.items() if point is not None}
    assert ranks[120] <= ranks[30]
    assert truth.regret(found[120] or POINTS[0]) == pytest.approx(
        1 - 1 / len(POINTS) - max(t.value or 0.0 for t in complete)
    )


def test_promotion_trains_no_trial_on_for_coming_early() -> None:
    sweep = replay(curves(), 0, promotes=True)
    sweep.winners([REDUCTION - 1])
    assert {trial.state for trial in sweep.trials.values() if trial.reports} == {TrialState.WAITING}


def test_the_recorded_grid_is_that_of_the_replay_and_holds_one_row_a_seed() -> None:
    recorded = read_curves()
    assert [one.seed for one in recorded] == list(range(len(recorded)))
    assert len(recorded) >= 2
    assert all(set(one.accuracies) == set(POINTS) for one in recorded)
    assert max(truth_of(recorded).worth.values()) > 0.97


def test_a_later_call_goes_on_from_the_sweeps_of_the_same_search(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    made = Outcome(
        side="tune", seed=0, wall_s=9.0, best=0.9, trials=4, epochs=30.0, steady_ms=steady_ms([1.0]), load_1min=1.0
    )
    append_result(file, "sweeps", {**asdict(made), "asked_trials": 4, "asked_epochs": 15})
    append_result(file, "sweeps.summary", {"asked_trials": 4, "asked_epochs": 15})
    assert earlier(file, "sweeps", argparse.Namespace(trials=4, epochs=15)) == [made]
    assert earlier(file, "sweeps", argparse.Namespace(trials=32, epochs=15)) == []
    assert earlier(file, "sweeps.one_step", argparse.Namespace(trials=4, epochs=15)) == []
    assert json.loads(file.read_text().splitlines()[0])["steady_ms"] is None


def test_later_trials_are_counted_without_the_first_fifth() -> None:
    assert steady_ms([10.0, 20.0, 21.0, 22.0, 23.0, 24.0]) == 1000.0
