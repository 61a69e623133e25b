"""Sweeps followed by the leader, over a real store and workers in memory that take no time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from service.configuration_records import Origin
from service.states import JobState, Verb
from service.sweep_records import SweepRow, SweepState, SweepView, Wish
from service.sweep_specs import read_sweep_spec, sample_job
from tests.service.given import Clock, spec
from tests.service.scene import Scene
from tuning.limits import MAX_FAILURES
from tuning.orders import Answer
from tuning.parsing import parse_sweep_spec
from tuning.space import space_of
from tuning.spec import trial_spec
from tuning.spec_problems import Known
from tuning.trial import TrialState
from workers.errors import Failure, Reason

pytestmark = pytest.mark.anyio


def sweep_document(**changes: Any) -> dict[str, Any]:
    """A sweep whose trials train 20 rounds of 8 samples."""
    return {
        "name": "lr",
        "job": {"entrypoint": "workers.recipes.digits:build", "samples": 160, "batch": {"global_size": 8}},
        "space": {"optimizer.lr": {"log_uniform": [1e-4, 1e-1]}},
        "metric": "loss",
        "mode": "min",
        "sampler": "random",
        "pruner": "none",
        "trials": 5,
        "parallel": 2,
        **changes,
    }


async def submit(scene: Scene, **changes: Any) -> SweepRow:
    spec = parse_sweep_spec(sweep_document(**changes), Known(has_prices=True))
    first = next(space_of(spec.space).corners())
    return (await scene.store.sweeps.create(spec, trial_spec(spec, 0, first))).sweep


async def until(scene: Scene, sweep: SweepRow, holds: Callable[[SweepView], bool]) -> SweepView:
    for _ in range(2000):
        await scene.reconciler.tick()
        view = await scene.store.sweeps.view(sweep.id)
        assert view is not None
        most = sum(trial.state is TrialState.RUNNING for trial in view.trials)
        assert most <= view.sweep.spec.parallel
        if holds(view):
            return view
        await asyncio.sleep(0.005)
    raise AssertionError(f"never came true; last: {view}")


async def move(scene: Scene, sweep: SweepRow, to: SweepState) -> None:
    await scene.reconciler.settle(5)
    row = await scene.store.sweeps.sweep(sweep.id)
    assert row is not None
    await scene.store.sweeps.move(row, to, None)


def has_ended(view: SweepView) -> bool:
    return view.sweep.state is not SweepState.RUNNING and all(trial.is_ended for trial in view.trials)


async def test_a_sweep_trains_all_its_trials_as_jobs_and_ends(scene: Scene) -> None:
    sweep = await submit(scene)
    view = await until(scene, sweep, has_ended)
    assert (view.sweep.state, view.sweep.reason) == (SweepState.SUCCEEDED, "5 of 5 trials are complete")
    assert [trial.state for trial in view.trials] == [TrialState.COMPLETE] * 5
    assert len({repr(trial.params) for trial in view.trials}) == 5
    for trial in view.trials:
        job = await scene.store.reconciler.job(trial.job_id)
        assert job is not None
        assert (job.state, job.spec.labels["sweep"]) == (JobState.SUCCEEDED, sweep.id)
        assert job.spec.optimizer.lr == trial.params["optimizer.lr"]
        assert (trial.samples, trial.value) == (160, job.loss)
    await until(scene, sweep, lambda view: not scene.cluster.searches)


async def test_a_sweep_goes_on_after_its_controller_and_its_reconciler_are_gone(scene: Scene) -> None:
    sweep = await submit(scene, trials=8, sampler="tpe")
    await until(scene, sweep, lambda view: sum(trial.is_ended for trial in view.trials) >= 2)
    scene.cluster.searches.clear()
    await until(scene, sweep, lambda view: sum(trial.is_ended for trial in view.trials) >= 4)
    await scene.restart()
    view = await until(scene, sweep, has_ended)
    assert [trial.state for trial in view.trials] == [TrialState.COMPLETE] * 8
    assert len({repr(trial.params) for trial in view.trials}) == 8


async def test_a_controller_that_hangs_gets_a_successor(scene: Scene) -> None:
    sweep = await submit(scene)
    scene.cluster.silent.add(f"sweep/{sweep.id}/1")
    view = await until(scene, sweep, has_ended)
    assert (view.sweep.state, view.sweep.term) == (SweepState.SUCCEEDED, 2)
    assert f"sweep/{sweep.id}/1" in scene.cluster.killed


async def test_trials_that_wait_at_a_rung_go_on_when_they_are_promoted(scene: Scene) -> None:
    scene.cluster.total = 500
    job = {"entrypoint": "workers.recipes.digits:build", "samples": 4000, "batch": {"global_size": 8}}
    sweep = await submit(scene, job=job, pruner={"asha": {"min_samples": 250, "reduction": 2}}, trials=6)
    view = await until(scene, sweep, has_ended)
    states = [trial.state for trial in view.trials]
    assert set(states) == {TrialState.COMPLETE, TrialState.PRUNED}
    events = [event for trial in view.trials for event in await scene.store.jobs.events(trial.job_id, 0, 100)]
    pauses = [event for event in events if event.to is JobState.PAUSED]
    resumed = [t for t in view.trials if t.state is TrialState.COMPLETE]
    assert pauses
    assert resumed
    for trial in view.trials:
        found = await scene.store.reconciler.job(trial.job_id)
        assert found is not None
        if trial.state is TrialState.PRUNED:
            assert (found.state, found.reason) == (JobState.CANCELLED, Reason.CANCELLED_BY_SWEEP)


@pytest.mark.parametrize("promote", [True, False])
async def test_no_trial_outruns_the_verdict_of_its_rung(scene: Scene, promote: bool) -> None:
    scene.cluster.total = 125
    scene.cluster.measured = lambda plan, round: {"loss": plan.lr.lr / round}
    job = {"entrypoint": "workers.recipes.digits:build", "samples": 1000, "batch": {"global_size": 8}}
    rungs = {"min_samples": 100, "reduction": 3, "promote": promote}
    view = await until(scene, await submit(scene, job=job, pruner={"asha": rungs}, trials=12, parallel=4), has_ended)
    ended = [(trial.state, trial.samples, await scene.store.reconciler.job(trial.job_id)) for trial in view.trials]
    assert {samples for state, samples, _ in ended if state is TrialState.PRUNED} <= {104, 304, 904}
    assert {samples for state, samples, _ in ended if state is TrialState.COMPLETE} == {1000}
    for state, samples, row in ended:
        assert row is not None
        assert row.samples == samples
        rows = await scene.store.telemetry.timeline(row.id, 0, 100)
        assert not [entry for entry in rows if "trains on" in entry.reason]
        was_let_on = any("its sweep lets it train" in entry.reason for entry in rows)
        assert was_let_on or state is not TrialState.COMPLETE


@pytest.mark.parametrize("is_looked_meanwhile", [False, True])
async def test_what_comes_while_a_search_thinks_is_looked_at_when_it_has_thought(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, is_looked_meanwhile: bool
) -> None:
    asked, thought = asyncio.Event(), asyncio.Event()

    async def ask(*_: object) -> Answer:
        asked.set()
        await thought.wait()
        return Answer(orders=(), importance={})

    monkeypatch.setattr(scene.cluster, "ask_search", ask)
    await submit(scene)
    await scene.reconciler.tick()
    await asyncio.wait_for(asked.wait(), 30)
    if is_looked_meanwhile:
        await scene.reconciler.tick()
    thought.set()
    await scene.reconciler.settle(30)
    assert scene.news.is_there == is_looked_meanwhile


async def test_pause_stops_all_and_resume_goes_on(scene: Scene) -> None:
    scene.cluster.total = 5000
    job = {"entrypoint": "workers.recipes.digits:build", "samples": 40_000, "batch": {"global_size": 8}}
    sweep = await submit(scene, job=job)
    await until(scene, sweep, lambda view: any(trial.state is TrialState.RUNNING for trial in view.trials))
    await move(scene, sweep, SweepState.PAUSED)
    view = await until(scene, sweep, lambda view: all(trial.state is TrialState.WAITING for trial in view.trials))
    assert {trial.wish for trial in view.trials} == {Wish.RUN}
    before = len(view.trials)
    await move(scene, sweep, SweepState.RUNNING)
    view = await until(scene, sweep, lambda view: view.trials[0].state is TrialState.RUNNING)
    assert len(view.trials) == before
    await move(scene, sweep, SweepState.STOPPED)
    view = await until(scene, sweep, has_ended)
    assert {trial.state for trial in view.trials} == {TrialState.PRUNED}


async def test_trials_that_fail_are_told_apart_and_can_be_tried_again(scene: Scene) -> None:
    scene.cluster.fails_at = 5
    scene.cluster.failure = Failure(reason=Reason.USER_ERROR, type="ValueError", message="no such file")
    sweep = await submit(scene)
    view = await until(scene, sweep, has_ended)
    assert (view.sweep.state, len(view.trials)) == (SweepState.FAILED, 5)
    assert {trial.state for trial in view.trials} == {TrialState.FAILED}
    assert "no such file" in str(view.trials[0].reason)
    scene.cluster.fails_at = None
    _, num_retried = await scene.store.sweeps.retry_failed(view.sweep)
    assert num_retried == 5
    view = await until(scene, sweep, has_ended)
    assert {trial.state for trial in view.trials} == {TrialState.COMPLETE}
    assert view.sweep.state is SweepState.SUCCEEDED


async def test_a_sweep_over_a_metric_that_evaluations_lack_ends_at_the_first_ones(scene: Scene) -> None:
    scene.cluster.total = 2000
    scene.cluster.measured = lambda plan, round: {"loss": 1.0 / round, **({"eval.accuracy": 0.5} if round == 5 else {})}
    job = {"entrypoint": "workers.recipes.digits:build", "samples": 16_000, "batch": {"global_size": 8}}
    view = await until(scene, await submit(scene, job=job, metric="eval.acuracy", trials=32), has_ended)
    assert view.sweep.state is SweepState.FAILED
    assert len(view.trials) <= MAX_FAILURES + view.sweep.spec.parallel
    assert all("did you mean 'eval.accuracy'" in str(trial.reason) for trial in view.trials)
    jobs = [await scene.store.reconciler.job(trial.job_id) for trial in view.trials]
    assert all(job is not None and job.samples < 16_000 for job in jobs)


async def test_trials_that_diverge_are_bad_ones_and_the_sweep_goes_on(scene: Scene) -> None:
    scene.cluster.fails_at = 5
    sweep = await submit(scene, trials=7)
    view = await until(scene, sweep, has_ended)
    assert [trial.state for trial in view.trials] == [TrialState.PRUNED] * 7
    assert all("not finite" in str(trial.reason) for trial in view.trials)
    assert all(math.isnan(trial.reports[-1].value) for trial in view.trials)
    _, num_retried = await scene.store.sweeps.retry_failed(view.sweep)
    assert num_retried == 0


async def test_a_limit_of_cost_ends_trials_that_report_nothing_for_hours(scene: Scene, clock: Clock) -> None:
    scene.cluster.upto = 2
    priced = replace(scene, settings=scene.settings.model_copy(update={"price_cpu_hour": 1.0}))
    sweep = await submit(priced, metric="eval.accuracy", limits={"cost": 0.5})
    written: set[int] = set()

    def has_ended_a_minute_later(view: SweepView) -> bool:
        clock.advance(60)
        written.update(trial.changed for trial in view.trials if trial.state is TrialState.RUNNING)
        return has_ended(view)

    view = await until(priced, sweep, has_ended_a_minute_later)
    assert str(view.sweep.reason).startswith("limits.cost=0.5 is reached with")
    assert sum(trial.seconds for trial in view.trials) >= 1800
    assert len(written) <= 2 * len(view.trials)


async def test_an_extended_sweep_goes_on_with_more_trials(scene: Scene) -> None:
    sweep = await submit(scene, trials=2)
    view = await until(scene, sweep, has_ended)
    await scene.store.sweeps.extend(view.sweep, 4)
    view = await until(scene, sweep, has_ended)
    assert [trial.state for trial in view.trials] == [TrialState.COMPLETE] * 4


async def test_a_trial_whose_job_is_cancelled_by_hand_has_failed_and_the_sweep_goes_on(scene: Scene) -> None:
    scene.cluster.total = 1000
    job = {"entrypoint": "workers.recipes.digits:build", "samples": 8000, "batch": {"global_size": 8}}
    sweep = await submit(scene, job=job, trials=3)
    view = await until(scene, sweep, lambda view: any(trial.state is TrialState.RUNNING for trial in view.trials))
    await scene.reconciler.settle(5)
    first = await scene.store.reconciler.job(view.trials[0].job_id)
    assert first is not None
    await scene.say(first, Verb.CANCEL)
    view = await until(scene, sweep, has_ended)
    assert [trial.state for trial in view.trials] == [TrialState.FAILED, TrialState.COMPLETE, TrialState.COMPLETE]
    assert view.trials[0].reason == "its job was cancelled"


@pytest.mark.parametrize("changes", [{"promote": "digits"}, {"job": {"from": "digits"}}])
async def test_a_sweep_opens_with_the_configuration_in_use(scene: Scene, changes: dict[str, Any]) -> None:
    job = spec(samples=160, steps=None, batch={"global_size": 8}, optimizer={"lr": 0.007})
    configuration = await scene.store.configurations.create("digits", job)
    parsed = read_sweep_spec(sweep_document(**changes), has_prices=False, configuration=configuration)
    origin = Origin("digits", 1) if "job" in changes else None
    sweep = (await scene.store.sweeps.create(parsed, sample_job(parsed), origin=origin)).sweep
    view = await until(scene, sweep, has_ended)
    assert view.trials[0].params == {"optimizer.lr": 0.007}
    assert len({trial.params["optimizer.lr"] for trial in view.trials}) == 5


async def test_a_new_sweep_learns_from_an_earlier_one(scene: Scene) -> None:
    def distance(lr: Any) -> float:
        return abs(math.log10(lr) + 2.0)

    async def mean_distance(**changes: Any) -> float:
        sweep = await submit(scene, sampler="tpe", parallel=1, seed=1, **changes)
        view = await until(scene, sweep, has_ended)
        assert view.sweep.state is SweepState.SUCCEEDED
        return fmean(distance(trial.params["optimizer.lr"]) for trial in view.trials)

    scene.cluster.measured = lambda plan, round: {"loss": 0.01 + distance(plan.lr.lr) / round}
    earlier = await submit(scene, trials=20)
    await until(scene, earlier, has_ended)
    cold, warm = await mean_distance(), await mean_distance(warm_start=[earlier.id])
    assert warm < 0.7 * cold
