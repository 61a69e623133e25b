"""What a sweep takes over from earlier ones: their best results, and what they tried."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.tuning.rows import TOTAL, Rows, sweep_spec
from tuning.inheritance import MAX_INHERITED, Result, inherited
from tuning.orders import Beginning
from tuning.search import begun
from tuning.space import space_of
from tuning.spec_parts import DistributionSpec, Mode
from tuning.trial import Change, Report, Trial, TrialState
from tuning.values import Params, key_of

LR = {"optimizer.lr": DistributionSpec(log_uniform=[1e-6, 1e-1])}
GRID = {"optimizer.lr": {"choice": [1e-4, 1e-3, 1e-2, 1e-1]}, "config.b": {"int": [1, 5]}}


def rate(number: int) -> dict[str, float]:
    return {"optimizer.lr": 1e-6 * (number + 1)}


def told(*values: float) -> tuple[Report, ...]:
    return tuple(Report(samples=100 * n, value=value) for n, value in enumerate(values, start=1))


def complete(number: int, value: float, params: Params | None = None) -> Trial:
    params = rate(number) if params is None else params
    return Trial(number=number, params=params, state=TrialState.COMPLETE, value=value, reports=told(value))


def cut(number: int, *values: float, state: TrialState = TrialState.PRUNED) -> Trial:
    return Trial(number=number, params=rate(number), state=state, reports=told(*values))


def results_of(mode: Mode = "max", **earlier: list[Trial]) -> list[Result]:
    return [result for each in inherited(earlier, space_of(LR), mode) for result in each.results]


def test_the_best_results_that_the_new_space_contains_are_inherited() -> None:
    inside = [complete(n, float(n)) for n in range(30)]
    outside = [
        complete(40, 99.0, {"optimizer.lr": 0.5}),
        complete(41, 99.0, {}),
        complete(42, 99.0, {**rate(42), "config.more": 1}),
        complete(44, math.nan),
    ]
    one, two = inherited({"one": [*inside, *outside], "two": [complete(0, 50.0, rate(29))]}, space_of(LR), "max")
    assert [result.value for result in two.results] == [50.0]
    assert [result.value for result in one.results] == [float(n) for n in range(28, 9, -1)]
    assert results_of("min", one=inside)[0].value == 0.0


def test_what_other_trials_reported_comes_after_what_is_complete_the_furthest_first() -> None:
    bad = [cut(2, 0.7, math.nan), cut(4, 0.8, state=TrialState.FAILED), cut(5)]
    known = [cut(0, 0.9), cut(1, 0.5, 0.6, state=TrialState.WAITING), *bad, cut(3, 0.1, 0.7), complete(6, 0.2)]
    found = results_of(one=known)
    assert [result.params for result in found] == [rate(number) for number in (6, 3, 1, 0)]
    assert found[0].as_trial(7) == Trial(number=7, params=rate(6), state=TrialState.COMPLETE, value=0.2)
    assert (found[1].as_trial(8).state, found[1].as_trial(8).reports) == (TrialState.PRUNED, told(0.1, 0.7))


def test_a_point_is_inherited_once_and_no_more_than_there_is_room_for() -> None:
    many = [cut(n, float(n)) for n in range(40)]
    found = results_of(one=many, two=[complete(0, 0.5, rate(39))])
    assert len(found) == MAX_INHERITED
    assert [result.value for result in found if result.params == rate(39)] == [0.5]


def test_all_that_has_been_tried_in_the_space_is_known_in_the_order_in_which_it_was_begun() -> None:
    states = [TrialState.FAILED, TrialState.RUNNING, TrialState.PRUNED]
    trials = [
        complete(3, 0.5),
        complete(4, 0.5, {"optimizer.lr": 0.5}),
        *(cut(number, state=state) for number, state in enumerate(states)),
    ]
    (one,) = inherited({"one": trials}, space_of(LR), "max")
    assert one.tried == (rate(0), rate(1), rate(3))  # the other was ended before it reported anything


def test_of_a_population_nothing_is_inherited_but_that_it_was() -> None:
    change = Change(samples=50, params=rate(0), before=rate(1), donor=1, given_up=40, reason="", time=0.0)
    changed = Trial(number=0, params=rate(0), state=TrialState.COMPLETE, value=0.9, changes=(change,))
    (one,) = inherited({"one": [changed, complete(1, 0.8)]}, space_of(LR), "max")
    assert (one.source, one.results, one.tried) == ("one", (), ())


def night(
    earlier: dict[str, list[Trial]], forebears: dict[str, list[Params]] | None = None, **changes: Any
) -> list[Trial]:
    """The trials of a sweep that is played to its end."""
    spec = sweep_spec(trials=8, warm_start=list(earlier), **changes)
    beginning = Beginning(spec_json=spec.model_dump_json(), earlier=earlier, forebears=forebears or {})
    rows, search, is_new = Rows(spec), begun(beginning), True
    while rows.end is None:
        rows.ask(search, is_new=is_new)
        is_new = False
        for number in rows.running()[:1]:
            rows.train(number, TOTAL)
    return list(rows.trials.values())


@pytest.mark.parametrize(
    "changes",
    [
        *({"sampler": sampler} for sampler in ("random", "tpe")),
        *({"sampler": sampler, "space": GRID} for sampler in ("random", "tpe", "grid")),
        {"sampler": "tpe", "pruner": {"asha": {"min_samples": 100, "reduction": 2}}},
    ],
    ids=str,
)
def test_no_night_repeats_the_one_before(changes: dict[str, Any]) -> None:
    first = night({}, **changes)
    second = night({"one": first}, **changes)
    assert second == night({"one": first}, **changes)
    keys = [{key_of(trial.params) for trial in trials} for trials in (first, second)]
    assert (len(keys[0]), len(keys[1]), len(keys[0] & keys[1])) == (8, 8, 0)


@pytest.mark.parametrize("sampler", ["random", "tpe", "grid"])
def test_nights_try_all_of_a_small_space_and_then_what_was_tried_the_longest_ago(sampler: str) -> None:
    nights: list[list[Trial]] = []
    for number in range(5):
        earlier = {f"night {number - 1}": trials for trials in nights[-1:]}
        before = {f"night {n}": [trial.params for trial in nights[n]] for n in reversed(range(number - 1))}
        nights.append(night(earlier, before, sampler=sampler, space=GRID))
    first, second, third, *later = ({key_of(trial.params) for trial in trials} for trials in nights)
    assert len(first | second | third) == 20
    assert third - (first | second) == third - first, "what is left over comes from the first"
    assert all(len(trials) == 8 for trials in nights)
    assert later[0].isdisjoint(third)


def test_points_of_another_space_are_not_counted_as_tried() -> None:
    outside = [{"optimizer.lr": 7.0}, {"optimizer.lr": 1e-4}]
    assert night({}, {"old": outside * 30}, space=GRID, sampler="grid") == night({}, space=GRID, sampler="grid")


def test_a_grid_that_was_searched_whole_is_searched_again() -> None:
    space = {"optimizer.lr": {"uniform": [0.01, 0.08], "step": 0.01}}
    first = night({}, sampler="grid", space=space)
    again = night({"one": first}, sampler="grid", space=space)
    assert sorted(key_of(trial.params) for trial in again) == sorted(key_of(trial.params) for trial in first)
