"""A search over rows that a small simulation keeps: whatever happens to it, the sweep goes on and ends."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuning.importance import importance
from tuning.limits import MAX_FAILURES
from tuning.orders import Advance, Beginning, Finish, Hold, Order, Prune, Resume, Standing, Start
from tuning.parsing import parse_sweep_spec
from tuning.search import Search, begun
from tuning.space import space_of
from tuning.spec import SweepSpec
from tuning.trial import ENDED, Report, Trial, TrialState

TOTAL = 1000


def sweep_spec(**changes: object) -> SweepSpec:
    return parse_sweep_spec(
        {
            "name": "s",
            "job": {"entrypoint": "workers.recipes.digits:build", "samples": TOTAL, "batch": {"global_size": 10}},
            "space": {"optimizer.lr": {"log_uniform": [1e-5, 1.0]}},
            "metric": "eval.accuracy",
            "mode": "max",
            "sampler": "random",
            "pruner": "none",
            "trials": 6,
            "parallel": 2,
            **changes,
        }
    )


def standing(num_trials: int = 6, samples_per_epoch: int | None = None) -> Standing:
    return Standing(num_trials=num_trials, samples_per_epoch=samples_per_epoch, time_s=0.0, cost=None)


@dataclass
class Rows:
    """What the store would hold; trials report and end as they are told here."""

    spec: SweepSpec
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    trials: dict[int, Trial] = field(default_factory=dict)
    changed: dict[int, None] = field(default_factory=dict)
    lines: dict[int, int | None] = field(default_factory=dict)
    end: Finish | None = None

    def ask(self, search: Search, *, is_new: bool) -> None:
        numbers = self.trials if is_new else self.changed
        rows = [self.trials[number] for number in numbers]
        self.changed = {}
        for order in search.answer(rows, standing(self.spec.trials)).orders:
            self._carry_out(order)
        running = [trial for trial in self.trials.values() if trial.state is TrialState.RUNNING]
        assert len(running) <= self.spec.parallel
        for trial in running:
            assert self.end is not None or not self.stands(trial), f"trial {trial.number} waits for ever"

    def stands(self, trial: Trial) -> bool:
        """Whether it waits at its line."""
        line = self.lines[trial.number]
        before = trial.reports[-2].samples if len(trial.reports) > 1 else 0
        return line is not None and before < line <= trial.samples

    def train(self, number: int, samples: int, fails: bool) -> None:
        trial = self.trials[number]
        line = self.lines[number] or TOTAL
        most = line if line > trial.samples else TOTAL
        at = min(most, trial.samples + samples)
        value = 1.0 - abs(float(str(trial.params["optimizer.lr"])) - 0.01) - 1.0 / at
        trial = replace(trial, reports=(*trial.reports, Report(samples=at, value=value)))
        if fails:
            trial = replace(trial, state=TrialState.FAILED)
        elif at == TOTAL:
            trial = replace(trial, state=TrialState.COMPLETE, value=value)
        self._put(trial)

    def _carry_out(self, order: Order) -> None:
        assert self.end is None
        match order:
            case Start(number=number, params=params, until=line):
                assert number == len(self.trials)
                self.lines[number] = line
                assert params not in [trial.params for trial in self.trials.values()]
                self._put(Trial(number=number, params=params, state=TrialState.RUNNING))
            case Hold(number=number):
                self._become(number, TrialState.RUNNING, TrialState.WAITING)
            case Advance(number=number, until=line):
                self.lines[number] = line
            case Resume(number=number, until=line):
                self.lines[number] = line
                self._become(number, TrialState.WAITING, TrialState.RUNNING)
            case Prune(number=number):
                self._become(number, TrialState.RUNNING, TrialState.PRUNED)
            case Finish():
                self.end = order

    def _become(self, number: int, before: TrialState, after: TrialState) -> None:
        assert self.trials[number].state is before
        self._put(replace(self.trials[number], state=after))

    def _put(self, trial: Trial) -> None:
        self.trials[trial.number] = trial
        self.changed[trial.number] = None


PRUNERS = ("none", {"asha": {"min_samples": 100, "reduction": 2}}, {"hyperband": {"min_samples": 100}}, "median")


@settings(max_examples=60, deadline=None)
@given(
    pruner=st.sampled_from(PRUNERS),
    parallel=st.integers(1, 4),
    trials=st.integers(1, 9),
    seed=st.integers(0, 2**16),
    restarts=st.floats(0, 0.5),
    failures=st.floats(0, 0.3),
)
def test_every_sweep_ends_within_its_bounds_whatever_becomes_of_its_controller(
    pruner: object, parallel: int, trials: int, seed: int, restarts: float, failures: float
) -> None:
    rows = Rows(sweep_spec(pruner=pruner, parallel=parallel, trials=trials, seed=seed), random.Random(seed))
    beginning = Beginning(spec_json=rows.spec.model_dump_json(), earlier={})
    search, is_new = begun(beginning), True
    for _ in range(2000):
        rows.ask(search, is_new=is_new)
        is_new = False
        if rows.end is not None:
            break
        if rows.chance.random() < restarts:
            search, is_new = begun(beginning), True
        running = [n for n, trial in rows.trials.items() if trial.state is TrialState.RUNNING]
        rows.train(rows.chance.choice(running), rows.chance.randint(20, 400), rows.chance.random() < failures)
    assert rows.end is not None
    states = [trial.state for trial in rows.trials.values()]
    assert len(states) <= trials
    assert TrialState.RUNNING not in states
    assert rows.end.has_succeeded == (TrialState.COMPLETE in states)
    if set(states) != {TrialState.FAILED}:
        assert len(states) == trials
    if TrialState.FAILED not in states:
        assert TrialState.COMPLETE in states


def test_the_same_rows_give_the_same_points_in_another_process() -> None:
    spec = sweep_spec(sampler="tpe", trials=20)
    one, other = Rows(spec), Rows(spec)
    search = begun(Beginning(spec_json=spec.model_dump_json(), earlier={}))
    for turn in range(12):
        one.ask(search, is_new=turn == 0)
        other.ask(begun(Beginning(spec_json=spec.model_dump_json(), earlier={})), is_new=True)
        number = next(n for n, trial in one.trials.items() if trial.state is TrialState.RUNNING)
        for rows in (one, other):
            rows.train(number, TOTAL, fails=False)
    assert [trial.params for trial in one.trials.values()] == [trial.params for trial in other.trials.values()]


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
        Hold(number=0, rung=150, reason="1 of 1 at 150 samples"),
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
    answer = search.answer(rows, replace(standing(4), time_s=60.0))
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


def test_what_mattered_is_found_out_again_for_every_tenth_that_is_new_and_at_the_end() -> None:
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
    assert len({tuple(sorted(shares.items())) for shares in seen}) <= 35
