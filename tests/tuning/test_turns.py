"""A population with fewer places than trials: those ahead let those behind train, and nobody waits for nothing."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from tests.tuning.rows import TOTAL, Rows, sweep_spec
from tuning.orders import Exploit, Hold, Resume
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


def turns(*trials: Trial, queued: set[int]) -> Turns:
    return Turns(trials=trials, queued=queued, interval=INTERVAL, total=TOTAL)


def test_as_many_places_are_given_up_as_trials_lack() -> None:
    ahead = [trial(number, (number + 1) * INTERVAL) for number in range(3)]
    assert [hold.number for hold in turns(*ahead, trial(3, 0), queued={3}).yielded()] == [2]
    assert [hold.number for hold in turns(*ahead, trial(3, 0), queued={3}).yielded(busy=[2])] == [1]
    assert [hold.number for hold in turns(*ahead, trial(3, INTERVAL), trial(4, 0), queued={3, 4}).yielded()] == [2, 1]
    assert turns(*ahead, trial(3, 2 * INTERVAL + 1), queued={3}).yielded() == []


def test_one_that_was_held_goes_on_once_nobody_behind_it_lacks_a_place() -> None:
    held = trial(0, 2 * INTERVAL, WAITING)
    assert turns(held, trial(1, INTERVAL), queued={1}).returned() is None
    assert turns(held, trial(1, INTERVAL), queued=set()).returned() == Resume(
        number=0, reason="nobody waits who is behind it"
    )
