"""What a trial reports: no number, say, or what comes after it was ordered to go on from another's state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from service.records import JobRow, Transition
from service.states import JobState
from service.store.opening import Store
from tests.service.given import Clock, checkpoint, leader, record, snapshot, spec
from tests.service.swept import JOB, Swept, point
from tuning.limits import Used
from tuning.optuna_trials import optuna_trial
from tuning.orders import Exploit, Prune, Resume, Standing
from tuning.promote import finalists
from tuning.search import Search
from tuning.space import space_of
from tuning.trial import TrialState
from tuning.values import Scalar
from workers.errors import Reason

pytestmark = pytest.mark.anyio

NEW = point(0.02, 64)


REPORTED = {"r10": 0.1, "r20": 0.2}


async def ordered(
    store: Store, clock: Clock, params: dict[str, Scalar] = NEW, reported: Mapping[str, float] = REPORTED
) -> Swept:
    """Trial 0 is at 640 samples, and its job was ordered to go on from what trial 1 saved at 320, with ``params``."""
    swept = await Swept.created(store, clock, await leader(store), pruner="none")
    await swept.begin(point(0.001), point(0.01))
    await swept.report(0, **reported)
    await swept.report(1, r10=0.9)
    await swept.order(Exploit(number=0, donor=1, params=params, reason="among the worst"))
    giver = await swept.job(1)
    assert ((await swept.trial(0)).course.taking, giver.saves) != (None, 0)
    saved = replace(checkpoint(10), saves=giver.saves)
    await store.reconciler.fold(snapshot(giver, checkpoints=(saved,)), swept.fence)
    await swept.look()
    job = await swept.job(0)
    assert job.settings is not None
    assert job.settings.donor is not None
    lr, batch = params["optimizer.lr"], params["batch.global_size"]
    assert (job.settings.lr, job.settings.global_batch, job.settings.donor.path) == (lr, batch, saved.path)
    assert ((await swept.trial(0)).params, (await swept.trial(0)).samples) == (params, 640)
    return swept


async def test_a_job_that_starts_again_gives_what_it_saved_last(store: Store, clock: Clock) -> None:
    swept = await Swept.created(store, clock, await leader(store), pruner="none")
    await swept.begin(point(0.001), point(0.01))
    await swept.report(0, r10=0.1)
    await swept.report(1, r10=0.9)
    await store.reconciler.fold(snapshot(await swept.job(1), checkpoints=(checkpoint(10),)), swept.fence)
    await swept.hold(1)
    await swept.order(Resume(number=1, reason=""))
    giver = await store.reconciler.admit(await swept.job(1), 1, swept.fence)
    await swept.order(Exploit(number=0, donor=1, params=NEW, reason="among the worst"))
    await store.reconciler.transition(await swept.job(1), JobState.RUNNING, Transition(), swept.fence)
    await swept.look()
    settings = (await swept.job(0)).settings
    assert settings is not None
    assert settings.donor is not None
    assert (settings.donor.job_id, settings.donor.path) == (giver.id, checkpoint(10).path)


async def test_reports_of_the_state_that_was_given_up_end_where_the_other_goes_on(store: Store, clock: Clock) -> None:
    swept = await ordered(store, clock)
    await swept.report(0, r21=0.2)  # it comes late
    told = [record(round, lineage=2, eval__accuracy=0.95) for round in (11, 12)]
    await store.reconciler.fold(snapshot(await swept.job(0), told), swept.fence)
    await swept.look()
    trial = await swept.trial(0)
    assert [(r.samples, r.value) for r in trial.reports] == [(320, 0.1), (352, 0.95), (384, 0.95)]
    assert not trial.for_search().is_changing
    assert [(c.donor, c.samples, c.given_up) for c in trial.course.changes] == [(1, 320, 640)]


async def test_reports_of_the_state_that_was_given_up_are_void_however_late_the_first_of_the_other_comes(
    store: Store, clock: Clock
) -> None:
    swept = await ordered(store, clock)
    told = record(25, lineage=2, eval__accuracy=0.95)
    await store.reconciler.fold(snapshot(await swept.job(0), [told]), swept.fence)
    await swept.look()
    assert [(r.samples, r.value) for r in (await swept.trial(0)).reports] == [(320, 0.1), (800, 0.95)]


async def test_a_job_that_is_restored_after_it_went_on_keeps_what_it_reported_up_to_there(
    store: Store, clock: Clock
) -> None:
    swept = await ordered(store, clock)
    told = [record(round, lineage=2, eval__accuracy=0.9) for round in (11, 12, 13)]
    await store.reconciler.fold(snapshot(await swept.job(0), told), swept.fence)
    await swept.look()
    told = [record(13, lineage=3, eval__accuracy=0.95)]
    await store.reconciler.fold(snapshot(await swept.job(0), told), swept.fence)
    await swept.look()
    reports = [(r.samples, r.value) for r in (await swept.trial(0)).reports]
    assert reports == [(320, 0.1), (352, 0.9), (384, 0.9), (416, 0.95)]


async def test_a_trial_that_ends_without_a_report_of_the_state_that_it_took_over_is_told_as_such(
    store: Store, clock: Clock
) -> None:
    swept = await ordered(store, clock, reported={"r20": 0.2})
    await store.reconciler.fold(snapshot(await swept.job(0), [record(11, lineage=2)]), swept.fence)
    await swept.end(0)
    trial = await swept.trial(0)
    assert (trial.state, trial.reports) == (TrialState.FAILED, ())
    assert trial.reason == "its job reported eval.accuracy of the state that it gave up only"


async def test_a_trial_that_goes_on_with_its_own_state_is_told_as_such(store: Store, clock: Clock) -> None:
    swept = await ordered(store, clock)
    for n in range(21, 26):
        assert (await swept.trial(0)).for_search().is_changing
        await swept.report(0, **{f"r{n}": 0.3})
    trial = await swept.trial(0)
    assert not trial.for_search().is_changing
    assert [(c.donor, c.samples) for c in trial.course.changes] == [(None, 640)]
    assert trial.samples == 25 * 32


async def retried(swept: Swept) -> JobRow:
    """The job of trial 0 that failed, as it is tried again."""
    await swept.end(0, JobState.FAILED)
    await swept.store.sweeps.retry_failed(await swept.row())
    await swept.look()
    job = await swept.job(0)
    assert job.state is JobState.QUEUED
    return job


@pytest.mark.parametrize("params", [NEW, point(0.001)])
async def test_a_trial_that_failed_before_it_took_over_a_state_is_tried_again_with_its_own(
    store: Store, clock: Clock, params: dict[str, Scalar]
) -> None:
    swept = await ordered(store, clock, params)
    settings = (await retried(swept)).settings
    trial = await swept.trial(0)
    assert (trial.params, trial.course.changes) == (point(0.001), ())
    assert settings is not None
    assert (settings.n, settings.lr, settings.global_batch, settings.donor) == (2, 0.001, 32, None)


async def test_a_trial_that_failed_after_it_went_on_with_its_own_state_is_tried_again_with_that(
    store: Store, clock: Clock
) -> None:
    swept = await ordered(store, clock)
    await swept.report(0, **{f"r{n}": 0.3 for n in range(21, 26)})
    settings = (await retried(swept)).settings
    assert [change.donor for change in (await swept.trial(0)).course.changes] == [None]
    assert settings is not None
    assert (settings.lr, settings.global_batch, settings.donor) == (0.02, 64, None)


@pytest.mark.parametrize("has_committed", [True, False])
@pytest.mark.parametrize("reason", [Reason.USER_ERROR, Reason.DIVERGED])
async def test_a_trial_that_took_over_a_state_and_ended_before_it_reported_did_so_with_what_it_took(
    store: Store, clock: Clock, has_committed: bool, reason: Reason
) -> None:
    swept = await ordered(store, clock)
    await swept.report(0, r21=0.2)  # it comes late
    before = await swept.job(0)
    saved = snapshot(before, checkpoints=(checkpoint(10, lineage=2),), lineage=2, cursor=320)
    trained = snapshot(before, [record(11, lineage=2)])
    await store.reconciler.fold(trained if has_committed else saved, swept.fence)
    await swept.end(0, JobState.FAILED, reason)
    trial = await swept.trial(0)
    assert (trial.params, [change.donor for change in trial.course.changes]) == (NEW, [1])
    diverged = [] if reason is Reason.USER_ERROR else [11 * 32 if has_committed else 321]
    assert [report.samples for report in trial.reports] == [320, *diverged]
    if reason is Reason.USER_ERROR:
        await store.sweeps.retry_failed(await swept.row())
        await swept.look()
        assert (await swept.job(0)).settings == before.settings


async def test_a_trial_that_failed_after_it_took_over_a_state_is_tried_again_with_that(
    store: Store, clock: Clock
) -> None:
    swept = await ordered(store, clock)
    told = record(11, lineage=2, eval__accuracy=0.95)
    await store.reconciler.fold(snapshot(await swept.job(0), [told]), swept.fence)
    await swept.look()
    before = (await swept.job(0)).settings
    assert (await retried(swept)).settings == before
    assert (await swept.trial(0)).params == NEW


async def test_a_donor_that_does_not_save_in_time_leaves_the_trial_as_it_was(store: Store, clock: Clock) -> None:
    swept = await Swept.created(store, clock, await leader(store), pruner="none")
    await swept.begin(point(0.001), point(0.01))
    await swept.order(Exploit(number=0, donor=1, params=NEW, reason="among the worst"))
    clock.now_s += 61
    await swept.look()
    trial = await swept.trial(0)
    assert (trial.course.taking, trial.params, trial.course.changes) == (None, point(0.001), ())
    assert (await swept.job(0)).settings is None


async def test_a_trial_whose_last_report_is_no_number_counts_with_none_before_it(store: Store, clock: Clock) -> None:
    swept = await Swept.created(store, clock, await leader(store), pruner="none")
    await swept.begin(point(0.001), point(0.01), point(0.02))
    await swept.report(0, r10=0.9, r100=math.nan)
    await swept.report(1, r10=math.inf)
    await swept.report(2, r10=math.nan, r100=0.3)
    for number in range(3):
        assert (await swept.trial(number)).state is TrialState.RUNNING
        await swept.end(number)
    trials = [trial.for_search() for trial in (await swept.view()).trials]
    assert [(trial.state, trial.value, trial.samples) for trial in trials] == [
        (TrialState.PRUNED, None, 3200),
        (TrialState.PRUNED, None, 320),
        (TrialState.COMPLETE, 0.3, 3200),
    ]
    assert (await swept.trial(0)).reason == "its last eval.accuracy is no number"
    assert [trial.number for trial in finalists(trials, "max")] == [2]
    space = space_of((await swept.row()).spec.space)
    assert [optuna_trial(trial, space).intermediate_values for trial in trials[:2]] == [{}, {}]


async def test_what_loss_returns_besides_may_be_no_number_either(store: Store, clock: Clock) -> None:
    swept = await Swept.created(store, clock, await leader(store), metric="user.margin", pruner="none")
    await swept.begin(point(0.001), point(0.01), point(0.02))
    for number, margins in enumerate([(0.9, math.nan), (math.nan, math.nan), (math.nan, 0.3)]):
        told = [record(n + 1, user__margin=margin) for n, margin in enumerate(margins)]
        await store.reconciler.fold(snapshot(await swept.job(number), told), swept.fence)
        await swept.end(number)
    trials = (await swept.view()).trials
    bad = (TrialState.PRUNED, None, "its last user.margin is no number")
    assert [(t.state, t.value, t.reason) for t in trials] == [bad, bad, (TrialState.COMPLETE, 0.3, None)]


async def test_an_evaluation_without_the_metric_ends_the_trial_and_names_what_it_has(
    store: Store, clock: Clock
) -> None:
    swept = await Swept.created(store, clock, await leader(store), metric="eval.acuracy")
    await swept.begin(point(0.01))
    await swept.report(0)
    assert (await swept.trial(0)).state is TrialState.RUNNING
    await swept.report(0, r10=0.9)
    trial, job = await swept.trial(0), await swept.job(0)
    told = "its job does not report eval.acuracy (did you mean 'eval.accuracy'?); its evaluation told eval.accuracy"
    assert (trial.state, trial.reason) == (TrialState.FAILED, f"{told}: start a sweep over one of these")
    assert (job.state, job.reason) == (JobState.CANCELLING, Reason.CANCELLED_BY_SWEEP)
    await store.reconciler.transition(job, JobState.CANCELLED, Transition(reason=job.reason), swept.fence)
    await swept.look()
    assert await swept.trial(0) == trial


async def test_an_evaluation_without_the_metric_is_no_matter_where_it_has_come_before(
    store: Store, clock: Clock
) -> None:
    swept = await Swept.created(store, clock, await leader(store))
    await swept.begin(point(0.01))
    await swept.report(0, r10=0.9)
    await store.reconciler.fold(snapshot(await swept.job(0), [record(20, eval__loss=0.5)]), swept.fence)
    await swept.look()
    assert (await swept.trial(0)).state is TrialState.RUNNING


async def test_a_trial_that_ends_without_the_metric_names_what_its_job_reported(store: Store, clock: Clock) -> None:
    swept = await Swept.created(store, clock, await leader(store), metric="user.margn", pruner="none")
    await swept.begin(point(0.01), point(0.02))
    told = [record(n, user__margin=0.5, lr=0.1) for n in range(1, 300)]
    await store.reconciler.fold(snapshot(await swept.job(0), told), swept.fence)
    await swept.look()
    await swept.end(0)
    await swept.end(1)
    told = "its job never reported user.margn (did you mean 'user.margin'?); it told loss, user.margin"
    assert (await swept.trial(0)).reason == f"{told}: start a sweep over one of these"
    nothing = "its job never reported user.margn, nor anything else that a sweep can be over"
    assert (await swept.trial(1)).reason == nothing


@pytest.mark.parametrize("pruner", ["asha", "hyperband", "median"])
async def test_the_first_report_at_a_rung_stays_however_many_come_after_it(
    store: Store, clock: Clock, pruner: str
) -> None:
    job = {"entrypoint": "workers.recipes.digits:build", "epochs": 20}
    choices = {"job": job, "metric": "loss", "mode": "min", "pruner": {pruner: {"min_samples": 1000}}}
    swept = await Swept.created(store, clock, await leader(store), **choices)
    await swept.begin(point(0.01))
    for n in range(1, 401, 4):
        told = snapshot(await swept.job(0), [record(n + each) for each in range(4)], total_samples=32_000)
        await store.reconciler.fold(told, swept.fence)
        await swept.look()
    reports = (await swept.trial(0)).reports
    lines = [1000] if pruner == "median" else [1000, 3000, 9000]
    firsts = [next(report for report in reports if report.samples >= line) for line in lines]
    assert [report.samples for report in firsts] == [1024, 3008, 9024][: len(lines)]
    assert [report.value for report in firsts] == [1.0 / (report.samples // 32) for report in firsts]
    assert len(reports) < 110


async def test_a_trial_that_diverges_is_bad_whatever_it_reported_before_and_no_failure(
    store: Store, clock: Clock
) -> None:
    swept = await Swept.created(store, clock, await leader(store))
    await swept.begin(point(0.01), point(0.02))
    await swept.report(0, r10=0.9)
    await swept.end(0, JobState.FAILED, Reason.DIVERGED)
    await swept.end(1, JobState.FAILED, Reason.DIVERGED)
    first, second = (await swept.view()).trials
    assert (first.state, first.reason, first.value) == (TrialState.PRUNED, "lr is too much", None)
    assert [report.value for report in first.reports] == [0.9, pytest.approx(math.nan, nan_ok=True)]
    assert (second.state, len(second.reports)) == (TrialState.PRUNED, 1)


async def test_a_search_hears_of_a_report_that_is_no_number_while_the_trial_runs(store: Store, clock: Clock) -> None:
    swept = await Swept.created(store, clock, await leader(store))
    await swept.begin(point(0.001))
    await swept.report(0, r10=math.nan)
    view = await swept.view()
    standing = Standing(num_trials=8, samples_per_epoch=None, used=Used(time_s=10.0, cost=None))
    answer = Search(view.sweep.spec).answer([view.trials[0].for_search()], standing)
    assert Prune(number=0, reason="reported nan after 320 samples") in answer.orders
    before = (await swept.row()).changed
    await swept.look()
    assert (await swept.row()).changed == before


async def test_a_run_of_a_promotion_whose_last_report_is_no_number_has_no_score(store: Store, clock: Clock) -> None:
    swept = await Swept.created(store, clock, await leader(store))
    await store.configurations.create("digits", spec(**JOB, steps=None))
    await swept.play()
    await swept.finish()
    await store.sweeps.ask_promotion(await swept.row(), "digits")
    await swept.compare()
    view = await store.reconciler.promotion_view(swept.id)
    assert view is not None
    job = await store.reconciler.job(view.runs[0].job_id)
    assert job is not None
    job = await store.reconciler.admit(job, 1, swept.fence)
    job = await store.reconciler.transition(job, JobState.RUNNING, Transition(), swept.fence)
    told = [record(1, eval__accuracy=0.9), record(2, eval__accuracy=math.nan)]
    await store.reconciler.fold(snapshot(job, told), swept.fence)
    job = await store.reconciler.job(job.id)
    assert job is not None
    await store.reconciler.transition(job, JobState.SUCCEEDED, Transition(), swept.fence)
    view = await store.reconciler.promotion_view(swept.id)
    assert view is not None
    assert (view.runs[0].score, view.runs[0].is_news) == (None, True)
