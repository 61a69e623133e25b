"""The contract of a search, whichever engine decides: Optuna's samplers with our pruners, or Ray Tune's populations."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuning.rows import TOTAL, Rows, job, standing, sweep_spec, worth
from tuning.limits import Used
from tuning.orders import Beginning, Exploit, Finish, Order, Prune, Start
from tuning.search import Search, begun
from tuning.spec import SweepSpec
from tuning.trial import Trial, TrialState

LEAST_POPULATION = 4
ENGINES: dict[str, dict[str, Any]] = {
    "random": {},
    "tpe": {"sampler": "tpe"},
    "gp": {"sampler": "gp"},
    "asha": {"pruner": {"asha": {"min_samples": 100, "reduction": 2}}},
    "stopping": {"pruner": {"asha": {"min_samples": 100, "reduction": 2, "promote": False}}},
    "hyperband": {"pruner": {"hyperband": {"min_samples": 100}}},
    "median": {"pruner": "median"},
    "pbt": {"population": "pbt"},
    "pb2": {"population": "pb2"},
}
every_engine = pytest.mark.parametrize("engine", ENGINES)


def spec_of(engine: str, trials: int = 6, parallel: int = 3, **changes: Any) -> SweepSpec:
    """A population trains all its trials at once: four at least, and of PB2, which fits a process to them, no more."""
    if "population" in ENGINES[engine]:
        trials = parallel = LEAST_POPULATION if engine == "pb2" else max(LEAST_POPULATION, trials)
    return sweep_spec(**ENGINES[engine], trials=trials, parallel=parallel, **changes)


def search_of(spec: SweepSpec) -> Search:
    return begun(Beginning(spec_json=spec.model_dump_json(), earlier={}))


def played(rows: Rows, restarts: float = 0.0, failures: float = 0.0, limit: int = 2000) -> Rows:
    """Trials report in an order of chance, until the sweep ends; its controller is lost now and then."""
    search, is_new = search_of(rows.spec), True
    for _ in range(limit):
        rows.ask(search, is_new=is_new)
        is_new = False
        if rows.end is not None:
            return rows
        if rows.chance.random() < restarts:
            search, is_new = search_of(rows.spec), True
        number, samples = rows.chance.choice(rows.place()), rows.chance.randint(50, 400)
        rows.train(number, samples, fails=rows.chance.random() < failures)
    raise AssertionError("the sweep does not end")


@every_engine
@settings(max_examples=8, deadline=None)
@given(
    parallel=st.integers(1, 4),
    trials=st.integers(1, 9),
    seed=st.integers(0, 2**16),
    restarts=st.floats(0, 0.5),
    failures=st.floats(0, 0.3),
    in_epochs=st.booleans(),
    places=st.none() | st.integers(1, 5),
)
def test_every_sweep_ends_within_its_bounds_whatever_becomes_of_its_controller(
    engine: str,
    parallel: int,
    trials: int,
    seed: int,
    restarts: float,
    failures: float,
    in_epochs: bool,
    places: int | None,
) -> None:
    per_epoch = TOTAL // 10 if in_epochs else None
    length = {"job": job(epochs=10)} if in_epochs else {}
    spec = spec_of(engine, trials, parallel, seed=seed, **length)
    rows = played(Rows(spec, random.Random(seed), per_epoch, places=places), restarts, failures)
    states = [trial.state for trial in rows.trials.values()]
    assert rows.end is not None
    assert len(states) <= spec.trials
    assert TrialState.RUNNING not in states
    assert rows.end.has_succeeded == (TrialState.COMPLETE in states)
    if set(states) != {TrialState.FAILED}:
        assert len(states) == spec.trials
    if TrialState.FAILED not in states:
        assert TrialState.COMPLETE in states


@every_engine
def test_the_same_rows_give_the_same_points_in_another_process(engine: str) -> None:
    spec = spec_of(engine, trials=12)
    one, other = Rows(spec), Rows(spec)
    search = search_of(spec)
    for turn in range(10):
        one.ask(search, is_new=turn == 0)
        other.ask(search_of(spec), is_new=True)
        if not (running := one.running()):
            break
        for rows in (one, other):
            rows.train(running[0], TOTAL)
    assert [trial.params for trial in one.trials.values()] == [trial.params for trial in other.trials.values()]


@every_engine
def test_without_news_nothing_is_ordered_and_nothing_is_counted_twice(engine: str) -> None:
    spec = spec_of(engine)
    rows, again = Rows(spec), Rows(spec)
    search, other = search_of(spec), search_of(spec)
    for turn in range(12):
        rows.ask(search, is_new=turn == 0)
        again.ask(other, is_new=turn == 0)
        if rows.end is not None:
            break
        assert other.answer((), standing(spec.trials)).orders == ()
        for row in again.trials.values():  # all of them told again, as to a controller that cannot be sure
            assert other.answer([row], standing(spec.trials)).orders == ()
        for number in rows.running():
            rows.train(number, 250)
            again.train(number, 250)
    assert again.orders == rows.orders


@every_engine
def test_less_is_better_where_the_mode_says_so(engine: str) -> None:
    def mirrored(trial: Trial, samples: int) -> float:
        return -worth(trial, samples)

    most = played(Rows(spec_of(engine), random.Random(3)))
    least = played(Rows(spec_of(engine, mode="min"), random.Random(3), worth=mirrored))
    assert [decision(order) for order in least.orders] == [decision(order) for order in most.orders]


def decision(order: Order) -> Order:
    """Without its words."""
    return order if isinstance(order, Start) or not hasattr(order, "reason") else replace(order, reason="")


@every_engine
def test_a_report_that_is_no_number_is_nobodys_measure_and_the_sweep_ends(engine: str) -> None:
    def diverging(trial: Trial, samples: int) -> float:
        return math.nan if trial.number == 0 and not trial.changes else worth(trial, samples)

    rows = played(Rows(spec_of(engine), worth=diverging))
    assert rows.end is not None
    assert rows.end.has_succeeded
    assert not [order for order in rows.orders if isinstance(order, Exploit) and order.donor == 0]
    told = [order for order in rows.orders if not isinstance(order, Start) and getattr(order, "number", None) == 0]
    assert bool(told) == bool(
        {"pruner", "population"} & ENGINES[engine].keys()
    )  # else nothing but a limit ends a trial
    assert all(isinstance(order, Prune | Exploit) for order in told[:1])


@every_engine
def test_the_best_trial_is_told_nothing_and_is_nobodys_donor_after_it_failed(engine: str) -> None:
    def best(trial: Trial, samples: int) -> float:
        return worth(trial, samples) + 10.0 * (trial.number == 0)

    rows, search = Rows(spec_of(engine), worth=best), search_of(spec_of(engine))
    rows.ask(search, is_new=True)
    for _ in range(2):
        for number in rows.running():
            rows.train(number, 150)
        rows.ask(search, is_new=False)
    rows.train(0, 250, fails=True)
    rows.ask(search, is_new=False)
    num_before = len(rows.orders)
    while rows.end is None:
        for number in rows.running():
            rows.train(number, 150)
        rows.ask(search, is_new=False)
    since = rows.orders[num_before:]
    assert not [order for order in since if getattr(order, "number", None) == 0]
    assert not [order for order in since if isinstance(order, Exploit) and order.donor == 0]


@every_engine
def test_a_limit_ends_it_whatever_it_was_about_to_do(engine: str) -> None:
    spec = spec_of(engine, limits={"time_s": 60})
    rows, search = Rows(spec), search_of(spec)
    rows.ask(search, is_new=True)
    for number in rows.running():
        rows.train(number, 150)
    changed = [rows.trials[number] for number in rows.changed]
    *_, last = search.answer(changed, replace(standing(spec.trials), used=Used(time_s=60.0, cost=None))).orders
    assert isinstance(last, Finish)
    assert last.reason.startswith("limits.time_s=60 is reached after 60 s")
