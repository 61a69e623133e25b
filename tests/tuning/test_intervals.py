"""Trials of a population that began before it was known how far they train are compared as often as the others."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tests.tuning.rows import GLOBAL_BATCH, TOTAL, Rows, job, standing, sweep_spec
from tuning.intervals import FIRST_LINE, Intervals
from tuning.orders import Advance, Exploit, Hold, Resume, Start
from tuning.search import Search
from tuning.spec import SweepSpec
from tuning.trial import Change, Report, Trial, TrialState
from tuning.turns import NUM_PARTS

INTERVAL = TOTAL // NUM_PARTS
EPOCHS = 10
PER_EPOCH = TOTAL // EPOCHS


def population(**changes: object) -> SweepSpec:
    """Its trials would evaluate once in 1,000 samples, and train on as many."""
    return sweep_spec(**{"job": job(epochs=EPOCHS), "population": "pbt", "trials": 4, "parallel": 4, **changes})


def trained(spec: SweepSpec, *, places: int | None = None, is_anew: bool = False) -> tuple[Rows, list[int]]:
    """All but the first report once an interval by themselves; also where the first has reported.

    ``is_anew``: each question goes to another search.
    """
    rows, search = Rows(spec, random.Random(0), samples_per_epoch=PER_EPOCH, places=places), Search(spec)
    reported: list[int] = []

    def worth(trial: Trial, samples: int) -> float:
        reported.extend([] if trial.number else [samples])
        return trial.number - 1.0 / samples  # the first is the worst

    rows.worth = worth
    rows.ask(search, is_new=True)
    while rows.end is None:
        for number in rows.place():
            rows.train(number, INTERVAL if number else TOTAL)
        search = Search(spec) if is_anew else search
        rows.ask(search, is_new=is_anew)
    assert {trial.state for trial in rows.trials.values()} == {TrialState.COMPLETE}
    return rows, reported


def assert_compared(reported: list[int]) -> None:
    """Once an interval, from the first to the last."""
    gaps = [after - before for before, after in pairwise(reported)]
    assert len(reported) > NUM_PARTS
    assert max(gaps) < 2 * INTERVAL


@pytest.mark.parametrize("kind", ["pbt", "pb2"])
def test_the_first_trial_is_compared_once_an_interval_and_takes_over_states(kind: str) -> None:
    rows, reported = trained(population(population=kind))
    assert_compared(reported)
    assert len([order for order in rows.orders if isinstance(order, Exploit) and order.number == 0]) >= 3


def test_so_it_is_where_each_question_goes_to_a_search_that_begins_anew() -> None:
    assert_compared(trained(population(), is_anew=True)[1])


def test_so_it_is_where_trials_take_turns() -> None:
    rows, reported = trained(population(), places=2)
    assert_compared(reported)
    held = {order.number for order in rows.orders if isinstance(order, Hold)}
    assert held == {order.number for order in rows.orders if isinstance(order, Resume)} != set()
    lines = [order.until for order in rows.orders if isinstance(order, Resume) and order.number]
    assert set(lines) == {None}  # the others need none


def test_until_the_size_of_its_data_is_known_the_first_trial_trains_no_further_than_its_first_step() -> None:
    search = Search(population())
    [first] = search.answer((), standing(4)).orders
    assert isinstance(first, Start)
    assert (first.first_rung, first.until) == (None, FIRST_LINE)
    row = Trial(number=0, params=first.params, state=TrialState.RUNNING)
    assert search.answer([row], standing(4)).orders == ()
    orders = search.answer([row], standing(4, PER_EPOCH)).orders
    assert Advance(number=0, until=INTERVAL) in orders
    starts = [order for order in orders if isinstance(order, Start)]
    assert [(order.first_rung, order.until) for order in starts] == [(INTERVAL, None)] * 3


@pytest.mark.parametrize(
    "changes",
    [
        {"job": {**job(epochs=EPOCHS), "eval_every_steps": INTERVAL // GLOBAL_BATCH}},
        {"metric": "loss", "mode": "min"},  # which comes at every step
    ],
)
def test_one_that_reports_often_enough_by_itself_stands_nowhere(changes: dict[str, object]) -> None:
    row = Trial(number=0, params={"optimizer.lr": 0.1}, state=TrialState.RUNNING)
    intervals = Intervals(population(**changes), [row], INTERVAL, TOTAL)
    assert intervals.moved([row]) == [Advance(number=0, until=None)]
    assert intervals.moved([row]) == []


def test_where_the_spec_tells_how_far_trials_train_none_of_them_began_before_that_was_known() -> None:
    row = Trial(number=0, params={"optimizer.lr": 0.1}, state=TrialState.RUNNING)
    assert Intervals(population(job=job(samples=TOTAL)), [row], INTERVAL, TOTAL).moved([row]) == []


def test_those_that_failed_before_they_told_it_are_as_the_first_and_later_ones_are_not() -> None:
    params = {"optimizer.lr": 0.1}
    failed = Trial(number=0, params=params, state=TrialState.FAILED)
    running = [Trial(number=number, params=params, state=TrialState.RUNNING) for number in (1, 2)]
    intervals = Intervals(population(), [failed, *running], INTERVAL, TOTAL)
    assert intervals.moved(running) == [Advance(number=1, until=INTERVAL)]


def test_the_line_of_a_state_that_was_taken_over_lies_an_interval_on_from_it() -> None:
    params = {"optimizer.lr": 0.1}
    row = Trial(number=0, params=params, state=TrialState.RUNNING, reports=(Report(samples=210, value=0.1),))
    intervals = Intervals(population(), [row], INTERVAL, TOTAL)
    assert intervals.moved([row]) == [Advance(number=0, until=310)]
    assert intervals.moved([row]) == []
    change = Change(samples=420, params=params, before=params, donor=1, given_up=210, reason="", time=0.0)
    taken = Trial(number=0, params=params, state=row.state, reports=row.reports, changes=(change,), is_changing=True)
    assert intervals.moved([taken]) == [Advance(number=0, until=520)]
    late = Trial(number=0, params=params, state=row.state, reports=(Report(samples=900, value=0.1),))
    assert intervals.moved([late]) == [Advance(number=0, until=None)]
