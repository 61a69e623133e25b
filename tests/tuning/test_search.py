"""What a search orders that has a pruner, or none: rungs, limits, failures, what mattered."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.tuning.rows import TOTAL, Rows, standing, sweep_spec
from tuning.importance import importance
from tuning.limits import MAX_FAILURES, Used
from tuning.orders import Advance, Finish, Hold, Order, Start
from tuning.search import Search
from tuning.space import space_of
from tuning.trial import ENDED, Report, Trial, TrialState


def test_where_rungs_hang_on_the_size_of_the_data_one_trial_finds_it_out() -> None:
    job = {"entrypoint": "workers.recipes.digits:build", "epochs": 9, "batch": {"global_size": 10}}
    spec = sweep_spec(job=job, pruner="asha", parallel=4)
    search = Search(spec)
    [first] = search.answer((), standing()).orders
    assert isinstance(first, Start)
    assert first.first_rung is None
    row = Trial(number=0, params=first.params, state=TrialState.RUNNING)
    assert search.answer([row], standing()).orders == ()
    orders = search.answer([row], standing(samples_per_epoch=300)).orders
    assert [(order.first_rung, order.until) for order in orders if isinstance(order, Start)] == [(100, 100)] * 3
    assert Advance(number=0, until=100) in orders


def test_where_the_first_rung_is_given_all_begin_at_once() -> None:
    job = {"entrypoint": "workers.recipes.digits:build", "epochs": 9, "batch": {"global_size": 10}}
    search = Search(sweep_spec(job=job, pruner={"asha": {"min_samples": 150}}, trials=4, parallel=4))
    starts = [order for order in search.answer((), standing(4)).orders if isinstance(order, Start)]
    assert [(start.first_rung, start.until) for start in starts] == [(150, 150)] * 4
    rows = [Trial(number=start.number, params=start.params, state=TrialState.RUNNING) for start in starts]
    reported = replace(rows[0], reports=(Report(samples=150, value=0.5),))
    assert search.answer([reported, *rows[1:]], standing(4, samples_per_epoch=300)).orders == (
        *(Advance(number=number, until=150) for number in (1, 2, 3)),
        Hold(number=0, rung=150, reason="1 of 1 so far at 150 samples"),
    )


def test_a_trial_at_its_end_is_not_held() -> None:
    spec = sweep_spec(pruner={"asha": {"min_samples": 100, "reduction": 2}}, parallel=2)
    search = Search(spec)
    starts = [order for order in search.answer((), standing()).orders if isinstance(order, Start)]
    reports = tuple(Report(samples=samples, value=0.1) for samples in (100, 500, TOTAL))
    rows = [Trial(number=s.number, params=s.params, state=TrialState.RUNNING, reports=reports) for s in starts]
    assert search.answer(rows, standing()).orders == ()


@pytest.mark.parametrize("trials", [3, 20])
def test_a_sweep_of_nothing_but_failures_ends_early(trials: int) -> None:
    rows = Rows(sweep_spec(trials=trials, parallel=2))
    search, is_new = Search(rows.spec), True
    while rows.end is None:
        rows.ask(search, is_new=is_new)
        is_new = False
        for number in [n for n, trial in rows.trials.items() if trial.state not in ENDED]:
            rows.train(number, 10, fails=True)
    assert len(rows.trials) <= MAX_FAILURES + rows.spec.parallel
    assert not rows.end.has_succeeded
    assert "trials failed" in rows.end.reason


def cut_short(pruner: object, *values: tuple[float, ...], state: TrialState = TrialState.RUNNING) -> Finish:
    """How a sweep ends at its limit of time when its trials have reported these, 110 samples apart."""
    spec = sweep_spec(pruner=pruner, parallel=4, trials=4, limits={"time_s": 60})
    search = Search(spec)
    starts = [order for order in search.answer((), standing(4)).orders if isinstance(order, Start)]
    rows = [
        Trial(
            number=start.number,
            params=start.params,
            state=state,
            reports=tuple(Report(samples=110 * n, value=value) for n, value in enumerate(told, start=1)),
        )
        for start, told in zip(starts, values, strict=False)
    ]
    answer = search.answer(rows, replace(standing(4), used=Used(time_s=60.0, cost=None)))
    (end,) = [order for order in answer.orders if isinstance(order, Finish)]
    return end


def test_a_limit_that_comes_before_any_trial_is_complete_leaves_the_best_at_the_furthest_rung() -> None:
    rungs = {"asha": {"min_samples": 100, "reduction": 2}}
    end = cut_short(rungs, (0.5, 0.6, 0.1), (0.4, 0.7), (0.9,), (0.1, 0.99, math.nan))
    told = "limits.time_s=60 is reached after 60 s; no trial is complete, the best was trial 1 after 220 samples"
    assert end == Finish(has_succeeded=True, reason=told)
    assert cut_short("none", (0.5, 0.6), (0.8,)).reason.endswith("the best was trial 1 after 110 samples")


def test_a_limit_that_comes_before_any_report_leaves_nothing() -> None:
    told = "limits.time_s=60 is reached after 60 s"
    assert cut_short("none") == Finish(has_succeeded=False, reason=told)
    assert cut_short("none", (0.5,), (0.8,), state=TrialState.FAILED) == Finish(has_succeeded=False, reason=told)


def test_several_at_a_time_that_all_fail_end_a_sweep_once_those_that_run_have_failed_too() -> None:
    spec = sweep_spec(trials=40, parallel=3)
    search, failed = Search(spec), dict[int, Trial]()
    starts = [order for order in search.answer([], standing(40)).orders if isinstance(order, Start)]
    told: list[Order] = []
    while starts:
        order = starts.pop(0)
        trial = Trial(number=order.number, params=order.params, state=TrialState.FAILED)
        failed[order.number] = trial
        told = [*search.answer([trial], standing(40)).orders]
        starts += [order for order in told if isinstance(order, Start)]
    assert len(failed) == MAX_FAILURES + spec.parallel - 1
    assert told == [Finish(has_succeeded=False, reason=f"all {len(failed)} trials failed; see the reason of each")]


def test_what_mattered_is_found_out_again_for_every_fourth_that_is_new_and_at_the_end() -> None:
    spec = sweep_spec(space={"optimizer.lr": {"log_uniform": [1e-5, 1.0]}, "config.a": {"uniform": [0, 1]}}, trials=87)
    search, trials, seen = Search(spec), {}, []
    orders = [*search.answer([], standing(87)).orders]
    while isinstance(order := orders.pop(0), Start):
        value = 1.0 - abs(float(str(order.params["optimizer.lr"])) - 0.01)
        reports = (Report(samples=TOTAL, value=value),)
        trials[order.number] = ended = Trial(
            number=order.number, params=order.params, state=TrialState.COMPLETE, value=value, reports=reports
        )
        answer = search.answer([ended], standing(87))
        orders += answer.orders
        seen.append(answer.importance)
    assert isinstance(order, Finish)
    assert seen[-1] == importance(list(trials.values()), space_of(spec.space), "max")
    assert all(shares for shares in seen[4:])
    assert len({tuple(sorted(shares.items())) for shares in seen}) <= 18
