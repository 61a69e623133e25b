"""A schedule with a past: a time that was missed, one that was caught up, and one that was skipped."""

from __future__ import annotations

from datetime import UTC, datetime

from service.reconciler.firing import Schedules
from service.schedule_records import ScheduleRow
from service.schedule_spec import parse_schedule_spec
from tests.browser.sample import Sample

SCHEDULED_S = 4 * 3600.0
"""So long ago it was made."""

BEFORE_CHANGE_S = datetime(2026, 10, 3, 14, 10, tzinfo=UTC).timestamp()
"""01:20 before the clocks of the schedule's zone go forward by half an hour: 00:40 there."""

CHANGE = "On Sunday, 4 October 2026, clocks in Australia/Lord_Howe go forward from 02:00 to 02:30; 02:00 does not come."


async def fill_schedule(sample: Sample) -> ScheduleRow:
    """Every half hour in a zone of its own; the service was down for its first two hours."""
    document = {
        "name": "nightly-digits",
        "cron": "0,30 * * * *",
        "time_zone": "Australia/Lord_Howe",
        "target": {"job": {"entrypoint": "workers.recipes.digits:build", "epochs": 40}},
    }
    spec, target = parse_schedule_spec(document, sample.clock.now_s)
    schedule = (await sample.store.schedules.create(spec, target)).schedule
    sample.clock.now_s += SCHEDULED_S / 2
    await fire(sample)
    sample.clock.now_s += SCHEDULED_S / 2
    await fire(sample)
    found = await sample.store.schedules.schedule(schedule.id)
    assert found is not None
    return found


async def fill_before_change(sample: Sample) -> ScheduleRow:
    """The same, alone in a new installation."""
    await sample.begin()
    return await fill_schedule(sample)


async def fire(sample: Sample) -> None:
    """All that is due by the sample's clock."""
    leader = Schedules(sample.store.reconciler, sample.fence, 0.5, sample.clock, lambda: None)
    while await leader.turn() == 0.0:
        pass
