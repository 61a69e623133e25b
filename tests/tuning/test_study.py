"""Samplers: one contract suite for all, and what each row, restart and earlier sweep means to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuning.given import accepted
from tuning.inheritance import Inherited, Result, point_of
from tuning.optuna_trials import optuna_trial
from tuning.space import Space, space_of
from tuning.spec_parts import DistributionSpec, SamplerName
from tuning.study import Study, StudySetting
from tuning.trial import Report, Trial, TrialState
from tuning.values import Params, Scalar, key_of
from workers.errors import SpecError

NUMBERS: dict[str, Any] = {"optimizer.lr": {"log_uniform": [1e-4, 1e-1]}, "config.width": {"int": [1, 64]}}
STEPS: dict[str, Any] = {"config.a": {"uniform": [0, 1], "step": 0.1}, "config.b": {"choice": ["x", "y", None]}}
CONDITIONAL: dict[str, Any] = {
    **NUMBERS,
    "config.kind": {"choice": ["plain", "rich"]},
    "config.depth": {"int": [1, 9], "when": {"config.kind": "rich"}},
    "config.gain": {"uniform": [0, 1], "when": {"config.kind": "plain"}},
}
SAMPLERS: list[tuple[SamplerName, dict[str, Any]]] = [
    *[("tpe", NUMBERS), ("tpe", STEPS), ("tpe", CONDITIONAL), ("random", CONDITIONAL), ("random", STEPS)],
    *[("gp", CONDITIONAL), ("cmaes", NUMBERS), ("grid", STEPS)],
]
every_sampler = pytest.mark.parametrize(("sampler", "specs"), SAMPLERS)


def space(specs: dict[str, Any]) -> Space:
    return space_of({path: DistributionSpec.model_validate(spec) for path, spec in specs.items()})


def setting(sampler: SamplerName, specs: dict[str, Any], **other: Any) -> StudySetting:
    return StudySetting(**{"space": space(specs), "sampler": sampler, "mode": "max", "seed": 3, **other})


def study(setting: StudySetting, trials: Iterable[Trial] = ()) -> Study:
    """With a clock that stands still, so that a Gaussian process is never too slow for a busy machine."""
    return Study(setting, trials, clock=lambda: 0.0)


def row(number: int, params: Params, state: TrialState = TrialState.COMPLETE, value: float | None = None) -> Trial:
    if value is None and state is TrialState.COMPLETE:
        value = -abs(math.log10(float(params.get("optimizer.lr", 0.01))) + 2)  # type: ignore[arg-type]  # a rate is a number
    reports = (Report(samples=100, value=0.5),) if state in (TrialState.PRUNED, TrialState.WAITING) else ()
    return Trial(number=number, params=params, state=state, value=value, reports=reports)


MIXED = [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED, TrialState.WAITING, TrialState.RUNNING]


def run(
    asking: Study, num_trials: int, state: Callable[[int], TrialState] = lambda n: TrialState.COMPLETE
) -> list[Trial]:
    rows = []
    for _ in range(num_trials):
        point = asking.ask()
        assert point is not None
        rows.append(row(asking.number, point, state(asking.number)))
        asking.record(rows[-1])
    return rows


@every_sampler
def test_every_point_is_one_of_the_space_and_none_comes_twice(sampler: SamplerName, specs: dict[str, Any]) -> None:
    asking = study(setting(sampler, specs))
    rows = run(asking, 14, lambda n: MIXED[n % 7] if n % 7 < 5 else TrialState.COMPLETE)
    assert all(space(specs).contains(trial.params) for trial in rows)
    assert len({key_of(trial.params) for trial in rows}) == 14
    assert all(type(v) in (bool, int, float, str, type(None)) for t in rows for v in t.params.values())


@every_sampler
def test_a_study_asks_the_same_until_it_is_told_more(sampler: SamplerName, specs: dict[str, Any]) -> None:
    asking = study(setting(sampler, specs))
    rows = run(asking, 12)
    asked = asking.ask()
    assert asked == asking.ask()
    asking.record(row(12, asked or {}))
    assert asking.ask() != asked
    assert asked not in [trial.params for trial in rows]


@every_sampler
def test_a_study_made_anew_from_rows_goes_on_without_repeating(sampler: SamplerName, specs: dict[str, Any]) -> None:
    asking = study(setting(sampler, specs))
    rows = run(asking, 12)
    again = study(setting(sampler, specs), rows)
    if sampler != "cmaes":  # its own state is in the process, and begins anew from the results
        assert again.ask() == asking.ask()
    assert len({key_of(trial.params) for trial in rows + run(again, 3)}) == 15


@every_sampler
def test_results_that_are_no_numbers_spoil_nothing(sampler: SamplerName, specs: dict[str, Any]) -> None:
    asking = study(setting(sampler, specs))
    for value in [math.nan, math.inf, -math.inf, *[None] * 10]:
        point = asking.ask()
        assert point is not None
        asking.record(row(asking.number, point, value=value))
    assert asking.ask()


NUMBER = st.sampled_from([0, 1, -1, 3, 0.5, 0.1, 1e-3, 1e300, 5e-324, 2**53, 1 + 1e-15])
BOUNDS = st.lists(NUMBER, min_size=2, max_size=2)
ANYTHING = st.dictionaries(
    st.sampled_from(["config.a", "config.b", "config.c"]),
    st.one_of(
        st.fixed_dictionaries({"uniform": BOUNDS}, optional={"step": NUMBER}),
        st.fixed_dictionaries({"int": BOUNDS}, optional={"log": st.booleans(), "step": NUMBER}),
        st.fixed_dictionaries({"log_uniform": BOUNDS}),
        st.fixed_dictionaries({"choice": st.lists(st.one_of(NUMBER, st.text(max_size=2), st.none()), max_size=3)}),
    ),
    min_size=1,
)


@settings(max_examples=60)
@given(ANYTHING)
def test_whatever_space_is_accepted_can_be_searched(specs: dict[str, Any]) -> None:
    try:
        searched = space_of(accepted(space=specs).space)
    except SpecError:
        return
    asking = study(StudySetting(space=searched, sampler="tpe", mode="max", seed=3))
    for number in range(13):
        point = asking.ask()
        if point is None:
            assert searched.count() in (number, None)
            return
        assert searched.contains(point)
        asking.record(row(number, point, value=float(number % 4)))


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_a_sampler_that_learns_comes_closer_to_the_best(sampler: SamplerName) -> None:
    rows = run(study(setting(sampler, NUMBERS)), 26)
    first, last = ([t.value or 0.0 for t in part] for part in (rows[:10], rows[-10:]))
    assert sum(last) > sum(first)


@pytest.mark.parametrize("sampler", ["grid", "random", "tpe"])
def test_a_small_space_is_searched_whole_and_then_there_is_no_more(sampler: SamplerName) -> None:
    asking = study(setting(sampler, STEPS))
    rows = run(asking, 33)
    assert asking.ask() is None
    assert len({key_of(trial.params) for trial in rows}) == 33


def test_a_range_of_a_few_numbers_that_can_be_told_apart_ends_too() -> None:
    asking = study(setting("random", {"config.a": {"uniform": [1.0, 1.0 + 5e-16]}}))
    assert len(run(asking, 3)) == 3  # 1 and the two numbers after it
    assert asking.ask() is None


def test_another_seed_searches_a_grid_in_another_order() -> None:
    assert run(study(setting("grid", STEPS)), 5) != run(study(setting("grid", STEPS, seed=4)), 5)


def test_a_trial_that_waits_at_a_rung_counts_by_its_reports_and_a_failed_one_not_at_all() -> None:
    point = {"config.a": 0.5, "config.b": "x"}
    seen = {state: optuna_trial(row(0, point, state), space(STEPS)) for state in MIXED}
    assert seen[TrialState.WAITING].state.name == seen[TrialState.PRUNED].state.name == "PRUNED"
    assert seen[TrialState.WAITING].intermediate_values == {100: 0.5}
    assert seen[TrialState.FAILED].state.name == "FAIL"
    not_begun = Trial(number=0, params=point, state=TrialState.WAITING)
    assert optuna_trial(not_begun, space(STEPS)).state.name == seen[TrialState.RUNNING].state.name == "RUNNING"


def test_openings_come_first_and_only_those_of_the_space() -> None:
    incumbent = {"optimizer.lr": 0.01, "config.width": 9}
    asking = study(setting("tpe", NUMBERS, openings=({"optimizer.lr": 7.0, "config.width": 9}, incumbent)))
    assert asking.ask() == incumbent
    asking.record(row(0, incumbent))
    assert asking.ask() != incumbent


@pytest.mark.parametrize("sampler", ["grid", "tpe"])
def test_a_whole_number_is_one_point_however_it_is_spelled(sampler: SamplerName) -> None:
    clipping = {"optimizer.clip_norm": {"choice": [1, 5]}}
    asking = study(setting(sampler, clipping, openings=({"optimizer.clip_norm": 1.0},)))
    assert [trial.params["optimizer.clip_norm"] for trial in run(asking, 2)] == [1, 5]
    assert asking.ask() is None


def test_points_have_one_key_where_their_values_are_the_same() -> None:
    assert key_of({"a": 1.0, "b": -0.0}) == key_of({"b": 0, "a": 1})
    values: list[Scalar] = [1, True, "1", "1.0", 1.5, None, math.nan, math.inf, 2**53 + 1, float(2**53), 10**400]
    assert len({key_of({"a": value}) for value in values}) == len(values)


def test_an_incumbent_lies_in_the_space_or_not() -> None:
    incumbent = {"optimizer": {"lr": 0.01, "base_batch": 128}, "config": {"width": 9, "kind": "plain", "gain": 0.5}}
    assert point_of(incumbent, space(NUMBERS)) == {"optimizer.lr": 0.01, "config.width": 9}
    plain = {"optimizer.lr": 0.01, "config.width": 9, "config.kind": "plain", "config.gain": 0.5}
    assert point_of(incumbent, space(CONDITIONAL)) == plain
    assert point_of({**incumbent, "optimizer": {}}, space(NUMBERS)) == {"optimizer.lr": 0.001, "config.width": 9}
    assert point_of({**incumbent, "config": {}}, space(NUMBERS)) is None
    assert point_of({**incumbent, "config": {"width": 900}}, space(NUMBERS)) is None


class Ticking:
    """A clock by which every look takes so many seconds."""

    def __init__(self, step_s: float) -> None:
        self._now_s, self._step_s = 0.0, step_s

    def __call__(self) -> float:
        self._now_s += self._step_s
        return self._now_s


@pytest.mark.parametrize(("step_s", "num_trials", "is_left"), [(9.0, 12, True), (0.0, 12, False), (0.0, 101, True)])
def test_a_gaussian_process_gives_way_when_it_is_slow_or_knows_much(
    step_s: float, num_trials: int, is_left: bool
) -> None:
    rows = [row(n, {"optimizer.lr": 1e-4 * 1.05**n, "config.width": 1 + n % 60}) for n in range(num_trials)]
    gp = Study(setting("gp", NUMBERS), rows, clock=Ticking(step_s))
    gp.ask()
    assert (gp.ask() == study(setting("tpe", NUMBERS), rows).ask()) is is_left


def handed_on(params: Iterable[Params], source: str = "one", **of_each: Any) -> Inherited:
    """Of a sweep whose trials all came to the same, or to nothing."""
    tried = tuple(params)
    results = tuple(Result(params=point, **of_each) for point in tried if of_each)
    return Inherited(source=source, results=results, tried=tried)


def test_what_is_inherited_guides_the_first_asks() -> None:
    results = tuple(
        Result(params={"optimizer.lr": lr, "config.width": 5}, value=-abs(math.log10(lr) + 2))
        for lr in (1e-4 * 1.4**n for n in range(20))
    )
    known = (Inherited(source="one", results=results),)
    warm, cold = (run(study(setting("tpe", NUMBERS, inherited=i)), 8) for i in (known, ()))
    assert sum(t.value or 0 for t in warm) > sum(t.value or 0 for t in cold)


@pytest.mark.parametrize(("sampler", "specs"), [each for each in SAMPLERS if each[0] != "grid"])
def test_a_sweep_that_begins_from_another_draws_other_points_and_the_same_ones_each_time(
    sampler: SamplerName, specs: dict[str, Any]
) -> None:
    def drawn(*sources: str) -> list[Params]:
        earlier = tuple(Inherited(source=source) for source in sources)
        return [trial.params for trial in run(study(setting(sampler, specs, inherited=earlier)), 6)]

    assert drawn("one") == drawn("one")
    assert len({repr(drawn(*sources)) for sources in ((), ("one",), ("two",), ("one", "two"))}) == 4


@pytest.mark.parametrize("is_told", [True, False])
@every_sampler
def test_what_an_earlier_sweep_tried_is_not_drawn_again(
    sampler: SamplerName, specs: dict[str, Any], *, is_told: bool
) -> None:
    came_to = {"value": 0.5, "reports": (Report(samples=100, value=0.5),)} if is_told else {}
    before = [trial.params for trial in run(study(setting(sampler, specs)), 12)]
    asking = study(setting(sampler, specs, inherited=(handed_on(before, **came_to),)))
    own = {key_of(trial.params) for trial in run(asking, 12)}
    assert not own & {key_of(params) for params in before}


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_what_was_tried_comes_again_once_there_is_nothing_else(sampler: SamplerName) -> None:
    before = [trial.params for trial in run(study(setting(sampler, STEPS)), 20)]
    earlier = (handed_on(before[:10], "one"), handed_on(before[10:], "two"))
    asking = study(setting(sampler, STEPS, inherited=earlier))
    keys = [key_of(trial.params) for trial in run(asking, 33)]
    assert asking.ask() is None
    assert len(set(keys)) == 33
    assert set(keys[13:]) == {key_of(params) for params in before}


def test_a_range_of_a_few_numbers_that_were_all_tried_is_searched_again() -> None:
    narrow = {"config.a": {"uniform": [1.0, 1.0 + 5e-16]}}
    before = [trial.params for trial in run(study(setting("random", narrow)), 3)]
    assert len(run(study(setting("random", narrow, inherited=(handed_on(before),))), 3)) == 3


@pytest.mark.parametrize("sampler", ["tpe", "grid"])
def test_an_opening_comes_first_although_it_was_tried_before(sampler: SamplerName) -> None:
    before = [trial.params for trial in run(study(setting(sampler, STEPS)), 5)]
    asking = study(setting(sampler, STEPS, inherited=(handed_on(before),), openings=(before[2],)))
    keys = [key_of(trial.params) for trial in run(asking, 6)]
    assert keys[0] == key_of(before[2])
    assert not set(keys[1:]) & {key_of(params) for params in before}


def test_nights_that_each_know_the_last_one_only_go_round_a_grid() -> None:
    nights: list[list[Params]] = []
    for night in range(4):
        earlier = tuple(handed_on(points, f"night {night}") for points in nights[-1:])
        incumbent = tuple(points[3] for points in nights[-1:])
        asking = study(setting("grid", STEPS, inherited=earlier, openings=incumbent))
        nights.append([trial.params for trial in run(asking, 12)])
    assert len({key_of(params) for points in nights[:3] for params in points}) == 12 + 11 + 10
    assert len({key_of(params) for points in nights for params in points}) == 33
