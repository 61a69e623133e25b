"""Reports and estimates: what was found, what it cost, what mattered."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.tuning.given import JOB, accepted
from tuning.alike import Alike, alike, stood
from tuning.estimate import estimate
from tuning.importance import importance
from tuning.lengths import drawn_range, total_range
from tuning.report import best_so_far, lr_batch_map
from tuning.space import space_of
from tuning.spec_parts import Mode
from tuning.trial import Report, Trial, TrialState
from tuning.values import Params


def trial(
    number: int, value: float | None, state: TrialState = TrialState.COMPLETE, params: Params | None = None
) -> Trial:
    reports = (Report(samples=100, value=value if value is not None else 0.0),)
    return Trial(number=number, params=params or {}, state=state, value=value, reports=reports, seconds=2.0)


def test_the_best_so_far_tells_what_each_improvement_cost() -> None:
    ended = [trial(1, None, TrialState.PRUNED), trial(0, 0.5), trial(3, 0.4), trial(2, math.nan), trial(4, 0.75)]
    points = best_so_far(ended, "max")
    assert [p.best for p in points] == [None, 0.5, 0.5, 0.5, 0.75]
    assert [(p.number, p.gain, p.cost_s) for p in points if p.is_improvement] == [(0, None, 4.0), (4, 0.25, 6.0)]
    assert (points[-1].samples, points[-1].worker_s) == (500, 10.0)
    assert [p.best for p in best_so_far(ended, "min")] == [None, 0.5, 0.4, 0.4, 0.4]


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("size", [1e-12, 0.92, 4e7])
def test_what_is_better_by_less_than_a_millionth_becomes_the_best_and_is_no_improvement(
    mode: Mode, size: float
) -> None:
    better = 1.0 if mode == "max" else -1.0
    values = [size * (1.0 + better * step) for step in (0.0, 3e-9, 7e-7, 1.4e-6, 1.5e-6)]
    points = best_so_far([trial(n, value) for n, value in enumerate(values)], mode)
    assert [(p.best, p.best_number) for p in points] == [(value, n) for n, value in enumerate(values)]
    assert [p.number for p in points if p.is_improvement] == [0, 3]
    assert points[3].gain == pytest.approx(1.4e-6 * size)  # of all since the row before, as is what was paid
    assert points[3].cost_s == 6.0


def test_of_equal_trials_the_first_that_was_started_is_the_best_whichever_ended_first() -> None:
    points = best_so_far([trial(1, None, TrialState.PRUNED), trial(3, 0.5), trial(0, 0.5), trial(4, 0.5)], "max")
    assert [p.best_number for p in points] == [None, 3, 0, 0]
    assert [p.number for p in points if p.is_improvement] == [3]


def test_a_loss_that_falls_towards_zero_improves_by_what_it_falls() -> None:
    points = best_so_far([trial(n, value) for n, value in enumerate((1e-9, 5e-10, 0.0, -0.0))], "min")
    assert [p.number for p in points if p.is_improvement] == [0, 1, 2]


def test_what_matters_is_told_from_what_does_not() -> None:
    chance = random.Random(0)
    spec = accepted(space={"optimizer.lr": {"log_uniform": [1e-4, 1e-1]}, "config.noise": {"uniform": [0, 1]}})
    points = [{"optimizer.lr": 10 ** chance.uniform(-4, -1), "config.noise": chance.random()} for _ in range(40)]
    trials = [trial(n, -abs(math.log10(p["optimizer.lr"]) + 2), params=p) for n, p in enumerate(points)]
    shares = importance(trials, space_of(spec.space), "max")
    assert shares["optimizer.lr"] > 0.8
    assert sum(shares.values()) == pytest.approx(1)


def test_what_matters_is_told_of_a_sweep_that_prunes_from_where_half_of_its_trials_came() -> None:
    chance = random.Random(0)
    space = space_of(accepted(space={"optimizer.lr": {"log_uniform": [1e-4, 1e-1]}}).space)
    points = [{"optimizer.lr": 10 ** chance.uniform(-4, -1)} for _ in range(30)]
    worth = [-abs(math.log10(p["optimizer.lr"]) + 2) for p in points]
    order = sorted(range(30), key=lambda n: -worth[n])
    trials = []
    for n, (point, value) in enumerate(zip(points, worth, strict=True)):
        last = next(samples for samples, most in ((900, 2), (300, 8), (100, 30)) if order.index(n) < most)
        reports = tuple(Report(samples=s, value=value - 1 / s) for s in (100, 300, 900) if s <= last)
        state = TrialState.COMPLETE if last == 900 else TrialState.PRUNED
        ended = trial(n, reports[-1].value if last == 900 else None, state, params=point)
        trials.append(replace(ended, reports=reports))
    failed = trial(30, None, TrialState.FAILED, params=points[0])
    nan = replace(trials[0], number=31, reports=(Report(samples=100, value=math.nan),))
    assert alike([*trials, failed], (100, 300)) == Alike(number=30, samples=100)
    compared = [*stood([*trials, failed, nan], 100)]
    assert [t.value for t in compared] == [value - 0.01 for value in worth]
    assert importance(compared, space, "max")
    assert alike(trials[:8], (300,)) == alike([], (100,)) == Alike()
    whole = [replace(t, state=TrialState.COMPLETE, value=0.1 * t.number) for t in trials[:16]]
    assert alike([*whole, *trials[16:]], (100, 300)) == Alike(number=16)
    assert len([*stood([*whole, *trials[16:]], None)]) == 16


def test_parameters_with_conditions_do_not_spoil_the_importance_of_the_others() -> None:
    spec = accepted()
    chance = random.Random(0)
    space = space_of(spec.space)
    trials = [trial(n, chance.random(), params=point) for n, point in enumerate(space.corners())]
    assert set(importance(trials, space, "max")) == {p.path for p in space.parameters if not p.when}


def test_importance_loads_no_forests_and_leaves_them_to_others() -> None:
    code = """
import sys
from tests.tuning import test_report
test_report.test_what_matters_is_told_from_what_does_not()
print("sklearn" in sys.modules)
from sklearn.ensemble import RandomForestRegressor
test_report.test_what_matters_is_told_from_what_does_not()
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.split() == ["False"]


def test_importance_of_too_little_is_empty() -> None:
    spec = accepted(space={"optimizer.lr": {"log_uniform": [1e-4, 1e-1]}})
    points = [{"optimizer.lr": 0.001 * (n + 1)} for n in range(9)]
    space = space_of(spec.space)
    assert importance([trial(n, 0.5, params=p) for n, p in enumerate(points)], space, "max") == {}
    assert importance([trial(n, n / 9, params=p) for n, p in enumerate(points[:3])], space, "max") == {}


def test_the_map_knows_what_the_job_says_where_only_one_of_the_two_is_searched() -> None:
    spec = accepted(space={"optimizer.lr": {"log_uniform": [1e-4, 1e-1]}})
    trials = [trial(0, 0.5, params={"optimizer.lr": 0.01}), trial(1, None, TrialState.RUNNING)]
    pruned = Trial(
        number=2, params={"optimizer.lr": 0.1}, state=TrialState.PRUNED, reports=(Report(samples=9, value=0.1),)
    )
    points = lr_batch_map(spec, [*trials, pruned])
    assert [(p.number, p.lr, p.global_batch, p.value) for p in points] == [(0, 0.01, 128, 0.5), (2, 0.1, 128, 0.1)]


def test_the_map_has_what_a_trial_trained_with_where_a_condition_left_lr_and_batch_out() -> None:
    kind = {"config.kind": "a"}
    spec = accepted(
        space={
            "config.kind": {"choice": ["a", "b"]},
            "optimizer.lr": {"log_uniform": [1e-4, 1e-1], "when": kind},
            "batch.global_size": {"choice": [32, 64], "when": kind},
        }
    )
    (point,) = lr_batch_map(spec, [trial(0, 0.5, params={"config.kind": "b"})])
    assert (point.lr, point.global_batch) == (1e-3, 128)


def test_an_estimate_lies_between_perfect_pruning_and_none() -> None:
    told = estimate(accepted(pruner={"asha": {"min_samples": 100}}), 2_700)
    # One in three passes each of 100, 300 and 900: (100 + 200/3 + 600/9 + 1800/27) of 2700.
    assert (told.num_trials, told.samples_low, told.samples_high) == (32, 32 * 300, 32 * 2_700)
    assert (told.worker_s_low, told.confirm_samples_high) == (None, 0)
    assert estimate(accepted(pruner="none"), 2_700).samples_low == 32 * 2_700


ADASCALE = {**JOB, "epochs": None, "samples": 1_000}


@pytest.mark.parametrize(
    ("batch", "space", "drawn"),
    [
        ({}, {}, (1_000, 1_000)),
        ({"lr_rule": "adascale"}, {}, (1_000, 1_000)),
        ({"lr_rule": "adascale", "global_size": 512}, {}, (1_000, 4_000)),
        ({"lr_rule": "adascale"}, {"batch.global_size": {"choice": [64, 256]}}, (1_000, 2_000)),
        ({"global_size": 512}, {"batch.lr_rule": {"choice": ["sqrt", "adascale"]}}, (1_000, 4_000)),
        ({"lr_rule": "adascale", "adapt": "goodput", "max_global_size": 640}, {}, (1_000, 5_000)),
        ({"lr_rule": "adascale", "adapt": "goodput"}, {}, (1_000, 32_000)),
    ],
)
def test_where_a_large_batch_is_worth_less_an_estimate_counts_what_is_drawn(
    batch: dict[str, Any], space: dict[str, Any], drawn: tuple[int, int]
) -> None:
    spec = accepted(job={**ADASCALE, "batch": batch}, space={"seed": {"int": [0, 9]}, **space}, pruner="none")
    assert drawn_range(spec, None) == drawn
    assert total_range(spec, None) == (1_000, 1_000)


@pytest.mark.parametrize(
    ("trials", "has_incumbent", "contenders"),
    [(10, False, 4), (2, False, 3), (10, True, 4), (3, True, 3), (2, True, 2), (1, True, 0)],
)
def test_an_estimate_counts_a_promotion(trials: int, has_incumbent: bool, contenders: int) -> None:
    spec = accepted(pruner="none", promote="best", trials=trials)
    told = estimate(spec, 1_000, samples_per_worker_s=100.0, has_incumbent=has_incumbent)
    assert (told.confirm_samples_low, told.confirm_samples_high) == (contenders * 5_000, contenders * 20_000)
    assert (told.worker_s_low, told.worker_s_high) == (10 * (trials + contenders * 5), 10 * (trials + contenders * 20))


def test_an_estimate_of_a_small_grid_counts_its_points() -> None:
    spec = accepted(space={"batch.global_size": {"choice": [32, 64]}}, sampler="grid", pruner="none")
    assert estimate(spec, 100).num_trials == 2


@pytest.mark.parametrize("pruner", ["hyperband", "median", "asha"])
def test_every_pruner_is_estimated_to_save_something(pruner: str) -> None:
    told = estimate(accepted(pruner=pruner), 2_700)
    assert told.samples_low < 0.8 * told.samples_high
