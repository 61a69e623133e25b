"""Which rows of a sweep are worth a question to its search."""

from __future__ import annotations

from dataclasses import replace

from service.reconciler.reckoning import Reckoning
from tuning.limits import Used
from tuning.orders import (
    Advance,
    Answer,
    Beginning,
    Exploit,
    Finish,
    Hold,
    Order,
    Prune,
    Question,
    Resume,
    Standing,
    Start,
)
from tuning.trial import Report, Trial, TrialState

STANDING = Standing(num_trials=3, samples_per_epoch=None, used=Used(time_s=0.0, cost=None))
FIRST = Trial(number=0, params={"lr": 0.1}, state=TrialState.RUNNING)


def question(*trials: Trial, standing: Standing = STANDING, beginning: Beginning | None = None) -> Question:
    return Question(beginning=beginning, trials=trials, standing=standing)


def reckoning(*orders: Order, trial: Trial = FIRST) -> Reckoning:
    made = Reckoning()
    made.asked(question(trial), Answer(orders=orders, importance={}))
    return made


def test_a_beginning_is_always_asked_about() -> None:
    begins = question(beginning=Beginning(spec_json="{}", earlier={}))
    assert Reckoning().is_news(begins)
    assert reckoning().is_news(begins)


def test_a_trial_that_is_started_and_takes_time_is_no_news() -> None:
    begun = reckoning(Start(number=1, params={"lr": 0.2}, first_rung=None))
    second = Trial(number=1, params={"lr": 0.2}, state=TrialState.RUNNING, job_id="job_2")
    assert not begun.is_news(question(second))
    assert not begun.is_news(question(replace(FIRST, seconds=3.0), second))
    assert begun.is_news(question(replace(second, params={"lr": 0.3})))


def test_orders_that_are_carried_out_are_no_news() -> None:
    assert not reckoning(Hold(number=0, rung=8, reason="")).is_news(question(replace(FIRST, state=TrialState.WAITING)))
    assert not reckoning(Prune(number=0, reason="")).is_news(question(replace(FIRST, state=TrialState.PRUNED)))
    held = replace(FIRST, state=TrialState.WAITING)
    assert not reckoning(Resume(number=0, reason=""), trial=held).is_news(question(FIRST))
    assert not reckoning(Advance(number=0, until=16)).is_news(question(FIRST))
    assert not reckoning(Finish(has_succeeded=True, reason="")).is_news(question(FIRST))


def test_orders_that_are_not_carried_out_are_news() -> None:
    assert reckoning(Hold(number=0, rung=8, reason="")).is_news(question(FIRST))


def test_reports_ends_and_changes_are_news() -> None:
    known = reckoning()
    assert known.is_news(question(replace(FIRST, reports=(Report(samples=8, value=1.0),))))
    assert known.is_news(question(replace(FIRST, state=TrialState.COMPLETE, value=1.0)))
    assert known.is_news(question(replace(FIRST, state=TrialState.FAILED)))
    assert known.is_news(question(replace(FIRST, is_changing=True)))
    assert reckoning(Exploit(number=0, donor=1, params={"lr": 0.2}, reason="")).is_news(question(FIRST))


def test_how_long_an_epoch_is_and_how_many_trials_there_may_be_is_news() -> None:
    known = reckoning()
    assert known.is_news(question(standing=replace(STANDING, samples_per_epoch=100)))
    assert known.is_news(question(standing=replace(STANDING, num_trials=4)))
    assert not known.is_news(question(standing=replace(STANDING, used=Used(time_s=100.0, cost=None))))
