"""A schedule with a past: a time that was missed, one that was caught up, and one that was skipped."""

from __future__ import annotations

from service.reconciler.firing import Schedules
from service.schedule_records import ScheduleRow
from service.schedule_spec import parse_schedule_spec
from tests.browser.sample import Sample

SCHEDULED_S = 4 * 3600.0
"""So long ago it was made."""


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


async def fire(sample: Sample) -> None:
    """All that is due by the sample's clock."""
    leader = Schedules(sample.store.reconciler, sample.fence, 0.5, sample.clock, lambda: None)
    while await leader.turn() == 0.0:
        pass
