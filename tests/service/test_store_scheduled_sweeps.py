"""Schedules that start sweeps: each goes on from what the last one found."""

from __future__ import annotations

import re

import pytest

from service import schedule_words
from service.promotion_records import PromotionRow, PromotionView
from service.schedule_documents import run_document
from service.schedule_records import ScheduleRow, ScheduleState
from service.states import JobState
from service.store.opening import Store
from service.sweep_records import SweepState
from service.targets import Kind
from tests.service.given import Clock, spec
from tests.service.scheduled import SWEEP, Firing, at, firing_at_seven, schedule_spec
from tests.service.swept import Swept, point
from tuning.spec_parts import MAX_WARM_STARTS
from workers.spec import JobSpec

pytestmark = pytest.mark.anyio


@pytest.fixture
async def firing(store: Store, clock: Clock) -> Firing:
    return await firing_at_seven(store, clock)


async def test_a_sweep_begins_from_the_last_one_that_found_something(firing: Firing) -> None:
    schedule = await firing.create(target={"sweep": SWEEP}, overlap="allow")
    await firing.at(at(8))
    (first,) = [firing.swept(child) for child in await firing.children(schedule)]
    row = await first.row()
    assert (row.name, row.state, row.spec.warm_start) == ("nightly", SweepState.RUNNING, [])
    await first.begin(point(0.01))
    assert (await first.job(0)).spec.labels == {"sweep": first.id, "trial": "0", "schedule": "nightly"}
    await first.complete(0, 0.9)
    await firing.at(at(9))
    # The second night finds nothing; the third one learns from the first.
    await firing.at(at(10))
    _, second, third = [await firing.swept(child).row() for child in await firing.children(schedule)]
    assert (second.spec.warm_start, third.spec.warm_start) == ([first.id], [first.id])
    (run, *_) = await firing.store.schedules.runs(schedule.id, 10)
    assert (run.kind, run.child_state) == (Kind.SWEEP, SweepState.RUNNING)


async def test_the_last_one_takes_a_place_among_the_most_that_may_be_named(firing: Firing) -> None:
    store = firing.store
    named = [(await Swept.created(store, firing.clock, firing.fence)).id for _ in range(MAX_WARM_STARTS)]
    schedule = await firing.create(target={"sweep": {**SWEEP, "warm_start": named}}, overlap="allow")
    await firing.at(at(8))
    await firing.at(at(9))
    first, second = await firing.children(schedule)
    assert (await firing.swept(second).row()).spec.warm_start == [first, *named[:-1]]


async def test_a_trial_has_the_labels_by_which_it_is_found_beside_the_users(firing: Firing) -> None:
    job = {**SWEEP["job"], "labels": {"team": "vision"}}
    schedule = await firing.create(target={"sweep": {**SWEEP, "job": job}})
    await firing.at(at(8))
    (child,) = [firing.swept(child) for child in await firing.children(schedule)]
    await child.begin(point(0.01))
    told = {"sweep": child.id, "trial": "0", "schedule": "nightly", "team": "vision"}
    assert (await child.job(0)).spec.labels == told


async def test_another_metric_begins_anew(firing: Firing) -> None:
    schedule = await firing.create(target={"sweep": SWEEP}, overlap="allow")
    await firing.at(at(8))
    spec, target = schedule_spec(target={"sweep": {**SWEEP, "metric": "loss", "mode": "min"}}, overlap="allow")
    row = await firing.row(schedule)
    await firing.store.schedules.replace(row, spec, target, row.upcoming)
    await firing.at(at(9))
    _, second = await firing.children(schedule)
    assert (await firing.swept(second).row()).spec.warm_start == []


async def test_a_sweep_that_goes_on_is_skipped_over_or_stopped_for_the_next(firing: Firing) -> None:
    patient = await firing.create(name="patient", target={"sweep": SWEEP})
    hasty = await firing.create(name="hasty", target={"sweep": SWEEP}, overlap="cancel_other")
    await firing.at(at(8))
    await firing.at(at(9))
    assert await firing.told(patient) == [("08:00", "STARTED"), ("09:00", "SKIPPED")]
    first, second = [await firing.swept(child).row() for child in await firing.children(hasty)]
    assert (first.state, first.reason) == (SweepState.STOPPED, "its schedule stopped it for the next run")
    assert second.state is SweepState.RUNNING


async def promoting(firing: Firing, overlap: str) -> tuple[ScheduleRow, Swept]:
    """A schedule whose first sweep has ended, and is to be held against the configuration digits."""
    await firing.store.configurations.create("digits", spec(steps=None, samples=3200))
    schedule = await firing.create(target={"sweep": {**SWEEP, "promote": "digits"}}, overlap=overlap)
    await firing.at(at(8))
    (first,) = [firing.swept(child) for child in await firing.children(schedule)]
    await first.play()
    await first.finish()
    return schedule, first


@pytest.mark.parametrize("overlap", ["skip", "buffer_one"])
async def test_a_sweep_goes_on_until_its_promotion_has_ended(firing: Firing, overlap: str) -> None:
    schedule, first = await promoting(firing, overlap)
    await firing.at(at(9))
    await first.compare()
    await firing.at(at(10))
    waits = "BUFFERED" if overlap == "buffer_one" else "SKIPPED"
    told = [("08:00", "STARTED"), ("09:00", waits), ("10:00", "SKIPPED")]
    assert await firing.told(schedule) == told
    (run, *_) = await firing.store.schedules.runs(schedule.id, 1)
    assert str(run.reason).startswith("the run before, its promotion counted, has not ended")
    (begun,) = [run for run in await firing.store.schedules.runs(schedule.id, 9) if run.outcome == "STARTED"]
    assert schedule_words.child(run_document(begun)) == "Succeeded, its winner is being compared"
    await first.conclude(lambda _: 0.9)
    await firing.at(at(10, 1))
    (*_, begun) = await firing.store.schedules.runs(schedule.id, 9)
    assert schedule_words.child(run_document(begun)) == "Succeeded"
    await firing.at(at(11))
    assert (await firing.told(schedule))[1:] == (
        [("09:00", "STARTED"), ("10:00", "SKIPPED"), ("11:00", "BUFFERED")]
        if overlap == "buffer_one"
        else [("09:00", "SKIPPED"), ("10:00", "SKIPPED"), ("11:00", "STARTED")]
    )


async def after_the_next(firing: Firing, schedule: ScheduleRow, first: Swept) -> tuple[PromotionView, PromotionRow]:
    """The first run's promotion once the second has started."""
    await firing.at(at(9))
    assert await firing.told(schedule) == [("08:00", "STARTED"), ("09:00", "STARTED")]
    view = await firing.store.reconciler.promotion_view(first.id)
    assert view is not None
    assert view.promotion is not None
    return view, view.promotion


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_promotion_is_stopped_for_the_next_with_its_runs(firing: Firing, has_begun: bool) -> None:
    schedule, first = await promoting(firing, "cancel_other")
    if has_begun:
        await first.compare()
    view, promotion = await after_the_next(firing, schedule, first)
    assert (promotion.state, promotion.reason) == ("STOPPED", "its schedule stopped it for the next run")
    assert (view.sweep.state, view.sweep.promote_to) == (SweepState.SUCCEEDED, None)
    await first.compare()
    jobs = [await firing.store.jobs.job(run.job_id) for run in view.runs]
    assert [job and job.state for job in jobs] == ["CANCELLED", "CANCELLED"] * has_begun
    assert (await firing.swept((await firing.children(schedule))[1]).row()).state is SweepState.RUNNING


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("overlap", ["skip", "cancel_other"])
async def test_a_promotion_asked_for_by_hand_is_none_of_its_schedules(
    firing: Firing, overlap: str, has_begun: bool
) -> None:
    schedule, first = await promoting(firing, overlap)
    await first.conclude(lambda _: 0.9)
    await firing.at(at(8, 30))
    await firing.store.configurations.create("other", spec(steps=None, samples=3200, seed=1))
    await firing.store.sweeps.ask_promotion(await first.row(), "other")
    if has_begun:
        await first.compare()
    view, promotion = await after_the_next(firing, schedule, first)
    assert promotion.state == ("RUNNING" if has_begun else "KEPT")
    assert (view.sweep.promote_to is None) == has_begun


async def test_one_that_has_ended_stays_so_while_a_run_by_hand_waits_for_two_sweeps(firing: Firing) -> None:
    schedule = await firing.create(target={"sweep": SWEEP}, overlap="buffer_one", end="2026-11-18T09:30:00Z")
    sweeps = firing.store.sweeps
    await firing.at(at(8))
    first = firing.swept((await firing.children(schedule))[0])
    await sweeps.move(await first.row(), SweepState.SUCCEEDED, None)
    await firing.at(at(9))
    second = firing.swept((await firing.children(schedule))[1])
    await sweeps.extend(await first.row(), 9)
    await firing.at(at(9, 1) + 1)
    await firing.trigger(schedule)
    ended = await firing.row(schedule)
    assert ended.state is ScheduleState.ENDED
    await sweeps.move(await second.row(), SweepState.SUCCEEDED, None)
    await firing.at(at(9, 2))
    assert await firing.told(schedule) == [("08:00", "STARTED"), ("09:00", "STARTED"), ("09:01", "BUFFERED")]
    waiting = await firing.row(schedule)
    assert (waiting.state, waiting.version) == (ScheduleState.ENDED, ended.version)
    await sweeps.move(await first.row(), SweepState.SUCCEEDED, None)
    await firing.at(at(9, 3))
    assert (await firing.told(schedule))[-1] == ("09:01", "STARTED")
    assert (await firing.row(schedule)).state is ScheduleState.ENDED


async def test_the_next_night_begins_from_the_last_that_tried_something_where_none_found_anything(
    firing: Firing,
) -> None:
    schedule = await firing.create(target={"sweep": SWEEP}, overlap="allow")
    await firing.at(at(8))
    (first,) = [firing.swept(child) for child in await firing.children(schedule)]
    await first.begin(point(0.01))
    await first.report(0, r10=0.1)
    await first.prune(0)
    await firing.at(at(9))
    second = firing.swept((await firing.children(schedule))[-1])
    await second.begin(point(0.02))
    await second.prune(0)
    await firing.at(at(10))
    third = firing.swept((await firing.children(schedule))[-1])
    assert (await third.row()).spec.warm_start == [first.id]


async def test_what_a_night_without_a_complete_trial_tried_is_known_beside_what_was_found_before(
    firing: Firing,
) -> None:
    schedule = await firing.create(target={"sweep": SWEEP}, overlap="allow")

    async def night(hour: int) -> Swept:
        await firing.at(at(hour))
        return firing.swept((await firing.children(schedule))[-1])

    first = await night(8)
    await first.begin(point(0.01))
    await first.complete(0, 0.9)
    second = await night(9)
    await second.begin(point(0.02))
    await second.report(0, r10=0.1)
    await second.prune(0)
    third = await night(10)
    await third.begin(point(0.03))
    await third.end(0, JobState.FAILED)
    fourth = await night(11)
    assert [(await swept.row()).spec.warm_start for swept in (third, fourth)] == [[second.id, first.id]] * 2
    await fourth.begin(point(0.04))
    await fourth.report(0, r10=0.2)
    fifth = await night(12)
    assert (await fifth.row()).spec.warm_start == [fourth.id, first.id]
    beginning = await firing.store.reconciler.beginning(await fifth.row())
    assert beginning.forebears == {second.id: [point(0.02)]}


async def test_sweeps_that_fail_in_a_row_pause_their_schedule(firing: Firing) -> None:
    schedule = await firing.create(target={"sweep": SWEEP}, pause_after_failures=2)
    for hour in (8, 9):
        await firing.at(at(hour))
        child = firing.swept((await firing.children(schedule))[-1])
        await firing.store.sweeps.move(await child.row(), SweepState.FAILED, "all trials failed")
    await firing.catch_up()
    paused = await firing.row(schedule)
    assert (paused.state, paused.num_failures) == ("PAUSED", 2)


async def test_each_time_takes_the_job_as_its_configuration_is_by_then(firing: Firing) -> None:
    store = firing.store
    row = await store.configurations.create("digits", spec(steps=None, samples=3200, seed=1))
    target = {"sweep": {**SWEEP, "job": {"from": "digits"}}}
    schedule_of, parsed = schedule_spec(configuration=row, target=target, overlap="allow")
    schedule = (await store.schedules.create(schedule_of, parsed)).schedule
    assert schedule.document["target"]["sweep"]["job"] == {"from": "digits"}
    await firing.at(at(8))
    replaced = await store.configurations.replace(row, spec(steps=None, samples=3200, seed=2))
    await firing.at(at(9))
    found = [await firing.swept(child).row() for child in await firing.children(schedule)]
    assert [(each.origin and each.origin.version, each.spec.job["seed"]) for each in found] == [(1, 1), (2, 2)]
    await store.configurations.delete(replaced.configuration)
    await firing.at(at(10))
    (run, *_) = await store.schedules.runs(schedule.id, 1)
    assert (run.outcome, "there is no configuration 'digits'" in str(run.reason)) == ("FAILED", True)


async def test_each_time_searches_what_the_configuration_of_then_has_a_use_for(firing: Firing) -> None:
    store = firing.store

    def job(has_use: bool) -> JobSpec:
        return spec(steps=None, samples=3200, config={"regularise": has_use})

    row = await store.configurations.create("digits", job(has_use=False))
    dropout = {"uniform": [0.0, 0.5], "when": {"config.regularise": True}}
    space = {"optimizer.lr": {"log_uniform": [1e-4, 1e-1]}, "config.dropout": dropout}
    target = {"sweep": {**SWEEP, "job": {"from": "digits"}, "space": space}}
    schedule_of, parsed = schedule_spec(configuration=row, target=target, overlap="allow")
    schedule = (await store.schedules.create(schedule_of, parsed)).schedule
    assert schedule.document["target"]["sweep"]["space"] == space
    for hour, has_use in ((8, False), (9, True), (10, False)):
        row = (await store.configurations.replace(row, job(has_use))).configuration
        await firing.at(at(hour))
    found = [await firing.swept(child).row() for child in await firing.children(schedule)]
    assert ["config.dropout" in each.spec.space for each in found] == [False, True, False]


async def test_what_each_run_tells_of_a_target_that_is_refused_is_cut(
    firing: Firing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.store.schedule_rows.MAX_FAULT_CHARS", 20)
    store = firing.store
    row = await store.configurations.create("digits", spec(steps=10))
    target = {"sweep": {**SWEEP, "job": {"from": "digits"}, "space": {"steps": {"choice": [10, 20]}}, "pruner": "none"}}
    schedule_of, parsed = schedule_spec(configuration=row, target=target)
    schedule = (await store.schedules.create(schedule_of, parsed)).schedule
    await store.configurations.replace(row, spec(steps=None, samples=3200))
    await firing.at(at(8))
    (run,) = await store.schedules.runs(schedule.id, 10)
    assert run.outcome == "FAILED"
    assert re.fullmatch(r"its target is refused by now: .{20}; replace the schedule", run.reason or "")
