"""A population with fewer places than trials: those ahead let those behind train, and nobody waits for nothing."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

import pytest

from tests.tuning.rows import TOTAL, Rows, sweep_spec
from tuning.orders import Exploit, Hold, Places, Resume
from tuning.search import Search
from tuning.trial import Report, Trial, TrialState
from tuning.turns import NUM_PARTS, Turns

INTERVAL = TOTAL // NUM_PARTS
RUNNING, WAITING = TrialState.RUNNING, TrialState.WAITING


def trained(places: int, speeds: Mapping[int, int]) -> tuple[Rows, int]:
    """A population of which each trial reports after so many samples, in turns; how far apart they were at most."""
    spec = sweep_spec(population="pbt", trials=len(speeds), parallel=len(speeds))
    rows, search, apart = Rows(spec, random.Random(1), places=places), Search(spec), 0
    rows.ask(search, is_new=True)
    while rows.end is None:
        for number in rows.place():
            rows.train(number, speeds[number])
        left = [trial.samples for trial in rows.trials.values() if trial.state in (RUNNING, WAITING)]
        apart = max([apart, *(max(left) - samples for samples in left)])
        rows.ask(search, is_new=False)
    return rows, apart


@pytest.mark.parametrize("places", [1, 2, 3])
def test_trials_without_places_for_all_train_about_as_far_as_each_other_and_take_over_states(places: int) -> None:
    rows, apart = trained(places, dict.fromkeys(range(6), INTERVAL))
    assert {trial.state for trial in rows.trials.values()} == {TrialState.COMPLETE}
    assert apart <= 4 * INTERVAL
    assert [order for order in rows.orders if isinstance(order, Exploit)]
    num_held = sum(isinstance(order, Hold) for order in rows.orders)
    assert 0 < num_held == sum(isinstance(order, Resume) for order in rows.orders)


def test_where_all_have_places_nobody_is_held_however_fast_it_is() -> None:
    rows, apart = trained(4, {0: INTERVAL, 1: INTERVAL, 2: 3 * INTERVAL, 3: 5 * INTERVAL})
    assert not [order for order in rows.orders if isinstance(order, Hold)]
    assert apart > 2 * INTERVAL


def trial(number: int, samples: int, state: TrialState = RUNNING) -> Trial:
    reports = (Report(samples=samples, value=0.5),) if samples else ()
    return Trial(number=number, params={}, state=state, reports=reports)


def turns(*trials: Trial, lacking: Sequence[int]) -> Turns:
    """All that run train, but for these, the first in line first."""
    training = {trial.number for trial in trials if trial.state is RUNNING} - set(lacking)
    lacking = tuple(lacking)
    return Turns(trials=trials, places=Places(training=training, lacking=lacking), interval=INTERVAL, total=TOTAL)


def held(turns: Turns, busy: Collection[int] = (), promised: Collection[int] = ()) -> dict[int, int]:
    return {behind: hold.number for behind, hold in turns.yielded(busy=busy, promised=promised).items()}


def test_as_many_places_are_given_up_as_trials_lack() -> None:
    ahead = [trial(number, (number + 1) * INTERVAL) for number in range(3)]
    assert held(turns(*ahead, trial(3, 0), lacking=[3])) == {3: 2}
    assert held(turns(*ahead, trial(3, 0), lacking=[3]), busy=[2]) == {3: 1}
    assert held(turns(*ahead, trial(3, INTERVAL), trial(4, 0), lacking=[4, 3])) == {4: 2, 3: 1}
    assert held(turns(*ahead, trial(3, 2 * INTERVAL + 1), lacking=[3])) == {}


def test_while_a_place_is_on_its_way_to_a_trial_nobody_else_gives_up_another_for_it() -> None:
    given = trial(2, 3 * INTERVAL, WAITING)
    assert held(turns(trial(0, INTERVAL), trial(1, INTERVAL), given, trial(3, 0), lacking=[3]), promised=[3]) == {}
    spec = sweep_spec(population="pbt", trials=4, parallel=4)
    rows, search = Rows(spec, places=3), Search(spec)
    rows.ask(search, is_new=True)
    for number in rows.place():  # all ahead by an interval, one after another, before the place has changed hands
        rows.train(number, INTERVAL)
        rows.ask(search, is_new=False)
    assert len([order for order in rows.orders if isinstance(order, Hold)]) == 1


def test_a_place_is_given_up_for_who_is_behind_and_promised_to_who_stands_before_it_in_the_line() -> None:
    there = [trial(0, 140), trial(1, 100), trial(2, 200), trial(3, 150)]
    assert held(turns(*there, lacking=[0, 1])) == {0: 2}
    there[2:] = [trial(2, 200, WAITING), trial(3, 200)]
    assert held(turns(*there, lacking=[1])) == {1: 3}


def test_a_trial_that_has_no_place_gives_none_up() -> None:
    found = Turns(
        trials=(trial(0, 5 * INTERVAL), trial(1, 0)),
        places=Places(lacking=(1,)),  # the first was paused by hand
        interval=INTERVAL,
        total=TOTAL,
    )
    assert held(found) == {}


def test_one_that_was_held_goes_on_once_nobody_behind_it_lacks_a_place() -> None:
    waiting = trial(0, 2 * INTERVAL, WAITING)
    assert turns(waiting, trial(1, INTERVAL), lacking=[1]).returned() is None
    resumed = Resume(number=0, reason="")
    assert turns(waiting, trial(1, INTERVAL), lacking=[]).returned() == resumed


def test_of_those_that_were_held_the_ones_behind_go_on_first() -> None:
    behind, ahead = trial(0, INTERVAL, WAITING), trial(1, 3 * INTERVAL, WAITING)
    found = turns(behind, ahead, lacking=[])
    order = found.returned()
    assert order is not None
    assert order.number == 0
    assert found.with_lacking(behind).returned() is None
