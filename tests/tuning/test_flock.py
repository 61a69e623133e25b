"""A population told from rows: what they say holds, whatever was decided, and a new one knows what the old one did."""

from __future__ import annotations

from dataclasses import replace

from tests.tuning.given import accepted
from tuning.flock import Flock
from tuning.limits import Used
from tuning.orders import Exploit, Order, Standing, Start
from tuning.population import PopulationSetting
from tuning.report import schedule_of
from tuning.search import Search
from tuning.space import space_of
from tuning.spec_parts import DistributionSpec
from tuning.trial import Change, Report, Trial, TrialState
from tuning.values import Params

SPACE = {"optimizer.lr": {"log_uniform": [1e-4, 1e-1]}}
SETTING = PopulationSetting(
    kind="pbt",
    space=space_of({path: DistributionSpec.model_validate(spec) for path, spec in SPACE.items()}),
    mode="max",
    seed=0,
    interval=100,
)


def lr(value: float) -> Params:
    return {"optimizer.lr": value}


def trial(number: int, *values: float) -> Trial:
    """The better, the higher its number; a report every 100 samples."""
    reports = tuple(Report(samples=100 * n, value=value) for n, value in enumerate(values, start=1))
    return Trial(number=number, params=lr(0.01 * (number + 1)), state=TrialState.RUNNING, reports=reports)


def reported(*rounds: float) -> list[Trial]:
    return [trial(number, *(value + number for value in rounds)) for number in range(4)]


def told(flock: Flock, trials: list[Trial]) -> list[Exploit]:
    for each in trials:
        flock.learn(each)
    return flock.judge(trials)


def begun() -> tuple[Flock, Exploit]:
    """A population whose worst trial has just been told to go on from the best."""
    flock = Flock(SETTING, reported())
    assert told(flock, reported(1.0)) == []  # of nobody it is known yet that it stays among the best
    [order] = told(flock, reported(1.0, 2.0))
    assert (order.number, order.donor) == (0, 3)
    assert SETTING.space.contains(order.params)
    return flock, order


def changed(order: Exploit, *, is_changing: bool) -> Trial:
    """The row of the trial that took over at 200 samples."""
    before = trial(0, 1.0, 2.0)
    change = Change(
        samples=200, params=order.params, before=before.params, donor=3, given_up=200, reason="bad", time=1.0
    )
    return replace(before, params=order.params, changes=(change,), is_changing=is_changing)


def test_the_worst_of_those_that_have_reported_goes_on_from_one_of_the_best() -> None:
    begun()


def test_while_a_change_is_under_way_a_trial_is_not_judged_again() -> None:
    flock, order = begun()
    waiting = changed(order, is_changing=True)
    late = replace(waiting, reports=(*waiting.reports, Report(samples=300, value=-9.0)))
    assert told(flock, [late, *reported(1.0, 2.0, 3.0)[1:]]) == []
    done = replace(late, is_changing=False)
    assert [order.number for order in told(flock, [done, *reported(1.0, 2.0, 3.0)[1:]])] == [0]


def test_a_decision_that_was_not_carried_out_is_taken_back() -> None:
    flock, _ = begun()
    told(flock, reported(1.0, 2.0))  # the row has its own values still
    assert flock._population.params(0) == lr(0.01)


def test_a_new_population_decides_nothing_by_old_reports_and_goes_on_with_the_values_of_the_rows() -> None:
    _, order = begun()
    rows = [changed(order, is_changing=False), *reported(1.0, 2.0)[1:]]
    anew = Flock(SETTING, rows)
    assert told(anew, rows) == []
    assert anew._population.params(0) == order.params
    worse = replace(rows[0], reports=(*rows[0].reports, Report(samples=300, value=-5.0)))
    [again] = told(anew, [*reported(1.0, 2.0, 3.0)[1:], worse])
    assert again.number == 0


def test_a_search_with_a_population_starts_all_and_orders_what_it_decides() -> None:
    job = {"entrypoint": "workers.recipes.digits:build", "samples": 1000, "batch": {"global_size": 10}}
    search = Search(accepted(job=job, space=SPACE, population="pbt", trials=4, parallel=4))
    standing = Standing(num_trials=4, samples_per_epoch=None, used=Used(time_s=0.0, cost=None))
    starts = [order for order in search.answer((), standing).orders if isinstance(order, Start)]
    assert [order.first_rung for order in starts] == [100] * 4
    rows = [Trial(number=s.number, params=s.params, state=TrialState.RUNNING) for s in starts]
    search.answer(rows, standing)
    orders: list[Order] = []
    for samples in (100, 200):
        report = Report(samples=samples, value=samples)
        rows = [replace(r, reports=(*r.reports, replace(report, value=samples + r.number))) for r in rows]
        orders += search.answer(rows, standing).orders
    [order] = orders
    assert isinstance(order, Exploit)
    assert (order.number, order.donor) == (0, 3)


def test_the_schedule_of_a_state_follows_it_through_the_trials_that_had_it() -> None:
    def change(samples: int, value: float, donor: int | None, time: float) -> Change:
        return Change(samples=samples, params=lr(value), before=lr(0.5), donor=donor, given_up=0, reason="", time=time)

    rows = {
        0: replace(trial(0), changes=(change(100, 0.1, 1, 1.0), change(300, 0.3, 2, 3.0), change(400, 0.4, None, 4.0))),
        1: trial(1),
        2: replace(trial(2), changes=(change(200, 0.2, 1, 2.0), change(900, 0.9, 1, 9.0))),
    }
    stages = [(stage.number, stage.samples, stage.params["optimizer.lr"]) for stage in schedule_of(rows, 0)]
    assert stages == [(1, 0, 0.02), (2, 200, 0.2), (0, 300, 0.3), (0, 400, 0.4)]
