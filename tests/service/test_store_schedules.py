"""The store's contract for schedules, and what their leader decides: each nominal time once, whatever happens."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import Connection

from service.firing import MAX_AT_ONCE, decide, first_upcoming
from service.records import JobFilter, Transition
from service.schedule_records import ScheduleState
from service.states import JobState
from service.store.bundles import BUNDLE_GRACE_S
from service.store.firing import look_at_due
from service.store.opening import Store, open_store
from service.store.port import FencedOutError, StaleRowError
from service.store.references import UnknownBundleError
from service.store.schedules import NameTakenError
from tests.service.given import Clock, leader, stored_bundle
from tests.service.query_plans import bad_steps, noted_statements
from tests.service.scheduled import JOB, Firing, at, firing_at_seven, schedule_spec
from workers.errors import Reason

pytestmark = pytest.mark.anyio


@pytest.fixture
async def firing(store: Store, clock: Clock) -> Firing:
    return await firing_at_seven(store, clock)


async def test_a_nominal_time_makes_a_job_with_the_schedules_name_and_label_and_the_next_is_noted(
    firing: Firing,
) -> None:
    schedule = await firing.create(overlap="allow")
    assert schedule.upcoming is not None
    assert schedule.upcoming.nominal_at == at(8)
    await firing.at(at(8) - 0.001)
    assert await firing.told(schedule) == []
    await firing.at(at(8))
    (child,) = await firing.children(schedule)
    job = await firing.store.jobs.job(child)
    assert job is not None
    assert (job.name, job.state, dict(job.spec.labels)) == ("nightly", JobState.QUEUED, {"schedule": "nightly"})
    upcoming = (await firing.row(schedule)).upcoming
    assert upcoming is not None
    assert upcoming.nominal_at == at(9)
    await firing.at(at(9) + 2)
    assert await firing.told(schedule) == [("08:00", "STARTED"), ("09:00", "STARTED")]


async def test_two_leaders_that_decide_at_once_start_one_child(
    firing: Firing, store: Store, database_url: str, clock: Clock
) -> None:
    schedule = await firing.create(overlap="allow")
    clock.now_s = at(8)
    other = open_store(database_url, clock)
    try:
        (due,) = (await store.reconciler.due_schedules(clock.now_s)).due
        firings = [decide(due, clock.now_s)] * 2
        results = await asyncio.gather(
            *(
                each.reconciler.fire(due.schedule, decided, firing.fence)
                for each, decided in zip((store, other), firings, strict=True)
            ),
            return_exceptions=True,
        )
    finally:
        await other.close()
    assert sorted(type(result).__name__ for result in results) == ["NoneType", "StaleRowError"]
    assert len(await firing.children(schedule)) == 1
    assert len((await store.jobs.page(JobFilter(), 10)).rows) == 1


async def test_a_nominal_time_that_has_a_run_never_gets_another_child_even_if_the_schedule_went_back(
    firing: Firing, store: Store, clock: Clock
) -> None:
    schedule = await firing.create(overlap="allow")
    before = schedule.upcoming
    await firing.at(at(8))
    row = await firing.row(schedule)
    spec, target = schedule_spec(overlap="allow", jitter_s=1)
    await store.schedules.replace(row, spec, target, before)
    await firing.at(at(8) + 5)
    assert await firing.told(schedule) == [("08:00", "STARTED")]
    assert len((await store.jobs.page(JobFilter(), 10)).rows) == 1


async def test_a_leader_that_was_superseded_starts_nothing(firing: Firing, store: Store, clock: Clock) -> None:
    schedule = await firing.create()
    await store.reconciler.release_lease(firing.fence)
    await leader(store, "another")
    clock.now_s = at(8)
    with pytest.raises(FencedOutError):
        await firing.schedules.turn()
    assert await firing.told(schedule) == []
    assert (await store.jobs.page(JobFilter(), 10)).rows == []


async def test_times_while_the_service_was_down_are_caught_up_within_the_window_and_else_missed(
    firing: Firing,
) -> None:
    schedule = await firing.create(overlap="allow", catchup_window_s=7200)
    await firing.at(at(12, 30))
    assert await firing.told(schedule) == [
        ("08:00", "MISSED"),
        ("09:00", "MISSED"),
        ("10:00", "MISSED"),
        ("11:00", "STARTED"),
        ("12:00", "STARTED"),
    ]
    runs = {run.nominal_at: run for run in await firing.store.schedules.runs(schedule.id, 10)}
    assert runs[at(8)].reason == "noticed 4 h 30 min late; the window to catch up is 2 h"
    assert runs[at(11)].reason == "caught up 1 h 30 min late"


async def test_a_window_of_nothing_still_takes_what_is_met_in_time(firing: Firing) -> None:
    schedule = await firing.create(overlap="allow", catchup_window_s=0)
    await firing.at(at(8) + 1)
    await firing.at(at(9) + 60)
    assert await firing.told(schedule) == [("08:00", "STARTED"), ("09:00", "MISSED")]


async def test_a_month_of_missed_minutes_is_told_in_few_runs_and_costs_one_look(firing: Firing) -> None:
    schedule = await firing.create(cron="* * * * *", overlap="skip", catchup_window_s=120)
    await firing.at(at(8, day=30))
    told = await firing.told(schedule)
    assert [outcome for _, outcome in told] == ["MISSED"] * 20 + ["STARTED", "SKIPPED", "SKIPPED"]
    oldest = (await firing.store.schedules.runs(schedule.id, 100))[-1]
    assert oldest.reason is not None
    assert oldest.reason.startswith("more than 9")


async def test_many_times_to_catch_up_are_started_in_several_transactions(firing: Firing) -> None:
    schedule = await firing.create(cron="* * * * *", overlap="allow", catchup_window_s=3 * 3600)
    await firing.at(at(7, 6) + (MAX_AT_ONCE + 20) * 60)
    assert len(await firing.children(schedule)) == MAX_AT_ONCE + 20


async def test_while_a_child_lives_others_are_skipped(firing: Firing) -> None:
    schedule = await firing.create(overlap="skip")
    await firing.at(at(8))
    await firing.at(at(9))
    (child,) = await firing.children(schedule)
    await firing.end(child)
    await firing.at(at(10))
    assert await firing.told(schedule) == [("08:00", "STARTED"), ("09:00", "SKIPPED"), ("10:00", "STARTED")]


async def test_one_waits_for_the_child_before_and_starts_when_that_has_ended(firing: Firing) -> None:
    schedule = await firing.create(overlap="buffer_one")
    await firing.at(at(8))
    await firing.at(at(10))
    assert await firing.told(schedule) == [("08:00", "STARTED"), ("09:00", "BUFFERED"), ("10:00", "SKIPPED")]
    await firing.end((await firing.children(schedule))[0])
    await firing.at(at(10, 1))
    assert await firing.told(schedule) == [("08:00", "STARTED"), ("09:00", "STARTED"), ("10:00", "SKIPPED")]
    assert len(await firing.children(schedule)) == 2


async def test_a_run_that_was_asked_for_by_hand_waits_for_the_one_before_even_if_the_schedule_is_paused(
    firing: Firing, store: Store
) -> None:
    schedule = await firing.create(overlap="buffer_one")
    await firing.at(at(8))
    await store.schedules.pause(await firing.row(schedule), "paused by hand")
    await firing.at(at(8, 1) + 1)
    await firing.trigger(schedule)
    await firing.at(at(8, 2))
    assert await firing.told(schedule) == [("08:00", "STARTED"), ("08:01", "BUFFERED")]
    await firing.end((await firing.children(schedule))[0])
    await firing.at(at(8, 3))
    assert await firing.told(schedule) == [("08:00", "STARTED"), ("08:01", "STARTED")]
    row = await firing.row(schedule)
    assert (row.state, row.reason, row.upcoming) == (ScheduleState.PAUSED, "paused by hand", None)
    assert (await store.reconciler.due_schedules(at(8, 4))).due == ()


async def test_a_nominal_time_that_waits_when_the_schedule_is_paused_waits_on_and_holds_up_nobody_who_asks(
    firing: Firing, store: Store
) -> None:
    schedule = await firing.create(overlap="buffer_one")
    await firing.at(at(8))
    await firing.at(at(9))
    await store.schedules.pause(await firing.row(schedule), "paused by hand")
    await firing.at(at(9, 1) + 1)
    await firing.trigger(schedule)
    await firing.trigger(schedule)
    assert (await firing.told(schedule))[1:] == [("09:00", "BUFFERED"), ("09:01", "BUFFERED"), ("09:01", "SKIPPED")]
    for minute in (2, 3):
        await firing.end((await firing.children(schedule))[-1])
        await firing.at(at(9, minute))
    states = [("08:00", "STARTED"), ("09:00", "BUFFERED"), ("09:01", "STARTED"), ("09:01", "SKIPPED")]
    assert await firing.told(schedule) == states
    row = await firing.row(schedule)
    resumed = await store.schedules.resume(row, first_upcoming(row.spec, row.id, firing.clock()))
    await firing.catch_up()
    assert (await firing.told(resumed))[1] == ("09:00", "STARTED")


async def test_a_run_by_hand_that_waits_starts_though_the_one_before_was_the_failure_that_pauses(
    firing: Firing,
) -> None:
    schedule = await firing.create(overlap="buffer_one", pause_after_failures=1)
    await firing.at(at(8))
    await firing.at(at(8, 1) + 1)
    await firing.trigger(schedule)
    await firing.end((await firing.children(schedule))[0], JobState.FAILED)
    await firing.at(at(8, 2))
    assert await firing.told(schedule) == [("08:00", "STARTED"), ("08:01", "STARTED")]
    assert (await firing.row(schedule)).state is ScheduleState.PAUSED


async def test_the_child_before_is_cancelled_for_the_next(firing: Firing) -> None:
    schedule = await firing.create(overlap="cancel_other")
    await firing.at(at(8))
    await firing.run((await firing.children(schedule))[0])
    await firing.at(at(9))
    await firing.at(at(10))
    running, waiting, new = [await firing.store.jobs.job(job_id) for job_id in await firing.children(schedule)]
    assert running is not None
    assert waiting is not None
    assert new is not None
    assert [job.state for job in (running, waiting, new)] == ["CANCELLING", "CANCELLED", "QUEUED"]
    by_now = await firing.store.reconciler.transition(
        running, JobState.CANCELLED, Transition(reason=Reason.CANCELLED_BY_USER), firing.fence
    )
    assert {job.reason for job in (by_now, waiting)} == {Reason.CANCELLED_BY_SCHEDULE}


async def test_enough_failures_in_a_row_pause_it_with_words_and_resuming_counts_anew(
    firing: Firing, store: Store
) -> None:
    schedule = await firing.create(pause_after_failures=2)
    for hour, state in ((8, JobState.FAILED), (9, JobState.SUCCEEDED), (10, JobState.FAILED), (11, JobState.FAILED)):
        await firing.at(at(hour))
        await firing.end((await firing.children(schedule))[-1], state)
    await firing.at(at(11, 1))
    row = await firing.row(schedule)
    assert (row.state, row.upcoming, row.num_failures) == (ScheduleState.PAUSED, None, 2)
    assert row.reason == "2 runs in a row failed; see to the cause, then resume it"
    await firing.at(at(14))
    assert len(await firing.children(schedule)) == 4
    resumed = await store.schedules.resume(row, schedule.upcoming)
    assert (resumed.state, resumed.num_failures, resumed.reason) == (ScheduleState.ACTIVE, 0, None)


async def test_what_cannot_be_started_has_failed_with_its_reason(firing: Firing, store: Store) -> None:
    origin = (await store.schedules.create(*schedule_spec(name="origin", overlap="allow"))).schedule
    await firing.at(at(8))
    (source,) = await firing.children(origin)
    schedule = await firing.create(
        target={"job": {**JOB, "init_from": {"job": source}}}, pause_after_failures=1, cron="30 * * * *"
    )
    await firing.end(source, JobState.FAILED)
    job = await store.jobs.job(source)
    assert job is not None
    await store.jobs.delete(job)
    await firing.at(at(8, 30))
    (run,) = await store.schedules.runs(schedule.id, 10)
    assert (run.outcome, run.child_id) == ("FAILED", None)
    assert f"not there any more: there is no job '{source}'" in str(run.reason)
    assert (await firing.row(schedule)).state is ScheduleState.PAUSED


async def test_a_schedule_ends_with_its_last_time(firing: Firing) -> None:
    schedule = await firing.create(end="2026-11-18T09:30:00Z", start="2026-11-18T08:30:00Z")
    assert schedule.upcoming is not None
    assert schedule.upcoming.nominal_at == at(9)
    await firing.at(at(9))
    row = await firing.row(schedule)
    assert (row.state, row.upcoming) == (ScheduleState.ENDED, None)
    assert await firing.told(schedule) == [("09:00", "STARTED")]


async def test_jitter_delays_each_time_by_the_same_whoever_asks_and_keeps_their_order(firing: Firing) -> None:
    schedule = await firing.create(cron="* * * * *", jitter_s=3600, overlap="allow")
    again = await firing.row(schedule)
    assert again.upcoming == schedule.upcoming
    delays = []
    for _ in range(8):
        row = await firing.row(schedule)
        assert row.upcoming is not None
        delays.append(row.upcoming.due_at - row.upcoming.nominal_at)
        await firing.at(row.upcoming.due_at)
    assert len(set(delays)) == 8
    assert all(0 <= delay < 60 for delay in delays)
    assert [outcome for _, outcome in await firing.told(schedule)] == ["STARTED"] * 8


async def test_a_name_belongs_to_one_schedule_and_a_change_in_between_is_noticed(firing: Firing, store: Store) -> None:
    schedule = await firing.create()
    with pytest.raises(NameTakenError):
        await firing.create()
    await store.schedules.pause(schedule, "by hand")
    with pytest.raises(StaleRowError):
        await store.schedules.pause(schedule, "by hand")
    await firing.at(at(12))
    assert await firing.told(schedule) == []


async def test_the_bundle_of_a_schedule_stays_until_the_schedule_goes(
    firing: Firing, store: Store, clock: Clock
) -> None:
    bundle = {"entrypoint": "train:build", "steps": 10, "bundle": "bundle_x"}
    with pytest.raises(UnknownBundleError):
        await firing.create(target={"job": bundle})
    bundle_id = (await stored_bundle(store, "a" * 64)).id
    schedule = await firing.create(target={"job": {**bundle, "bundle": bundle_id}})
    await firing.at(at(8))
    (child,) = await firing.children(schedule)
    await firing.end(child)
    clock.advance(BUNDLE_GRACE_S + 60)
    job = await store.jobs.job(child)
    assert job is not None
    assert (await store.jobs.delete(job)).bundle_key is None
    assert await store.reconciler.bundle(bundle_id) is not None
    assert (await store.schedules.delete(await firing.row(schedule))).bundle_key == "bundles/a.zip"
    assert await store.schedules.runs(schedule.id, 10) == []


async def test_a_look_at_what_is_due_goes_along_indexes_however_many_schedules_and_runs_there_are(
    firing: Firing, store: Store
) -> None:
    await firing.create(overlap="buffer_one")
    await firing.at(at(9))

    def steps(conn: Connection) -> list[str]:
        with noted_statements(conn.engine) as statements:
            seen = look_at_due(conn, at(10))
        assert (len(seen.due), seen.next_at) == (1, None)
        return bad_steps(conn, statements)

    assert await store.database.read(steps) == []
