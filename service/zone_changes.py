"""What changes of a zone's clocks do to the times of a schedule, in words. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import takewhile

from service.cron import Cron, first_change, offset_at
from service.schedule_spec import ScheduleSpec

AHEAD = timedelta(days=60)
"""So far ahead people are told."""


def notices(spec: ScheduleSpec, now_s: float) -> list[str]:
    """One sentence for each change of the clocks that lies ahead."""
    now = datetime.fromtimestamp(now_s, UTC)
    here, found = now, []
    while change := first_change(spec.zone, here, now + AHEAD):
        found.append(_sentence(spec, change))
        here = change
    return found


def _sentence(spec: ScheduleSpec, change: datetime) -> str:
    before = (change + offset_at(spec.zone, change - timedelta(seconds=1))).replace(tzinfo=None)
    after = (change + offset_at(spec.zone, change)).replace(tzinfo=None)
    way = "forward" if after > before else "back"
    place = f"clocks in {spec.time_zone} go {way} from {before:%H:%M} to {after:%H:%M}"
    return f"On {before:%A}, {before.day} {before:%B %Y}, {place}; {_effect(Cron(spec.cron), before, after)}."


def _effect(cron: Cron, before: datetime, after: datetime) -> str:
    begin, end = min(before, after), max(before, after)
    times = list(takewhile(lambda local: local < end, cron.local_times(begin - timedelta(seconds=1))))
    if not times:
        return "no time of this schedule is skipped or repeated"
    told = " and ".join(dict.fromkeys((f"{times[0]:%H:%M}", f"{times[-1]:%H:%M}")))
    told = told if len(times) <= 2 else f"{len(times)} times from {told.replace(' and ', ' to ')}"
    be, do, come = ("is", "does", "comes") if len(times) == 1 else ("are", "do", "come")
    if after > before:
        met = f"{told}, which {be} skipped, {be} met at {end:%H:%M}" + (", once" if len(times) > 1 else "")
        return met if cron.is_times_of_day else f"{told} {do} not come"
    return (
        f"{told} {be} met the first time only" if cron.is_times_of_day else f"{told} {come} twice, and {be} met twice"
    )
