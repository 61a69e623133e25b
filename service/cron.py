"""Which moments a cron expression means in a time zone. Pure; the calendar is cronsim's, the zone's changes are ours.

As Debian's cron has it: an expression whose minute and hour are both given (``30 2 * * *``) means times of day, each
once a day. One that a change of the clocks skips is meant at the end of the gap, one that comes twice the first time.
An expression whose minute or hour begins with a star means every minute whose local time fits, however often.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from cronsim.cronsim import SYMBOLIC_DAYS, SYMBOLIC_MONTHS

_SIZES = {"minute": 60, "hour": 24, "day of month": 31, "month": 12, "day of week": 7}
_LEAST = {"day of month": 1, "month": 1}
_VALUE = r"(\d{1,2}|[A-Za-z]{3})"
_ITEM = re.compile(rf"(\*|(?P<first>{_VALUE})(-(?P<last>{_VALUE}))?)(/(?P<step>\d{{1,2}}))?", re.ASCII)
_FORMS = "write *, numbers, ranges such as 1-5, lists such as 1,15 and steps such as */15"
_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_SECOND = timedelta(seconds=1)
_STRIDE = timedelta(hours=12)
"""No zone changes its clocks twice within that."""


class CronError(ValueError):
    """The expression is none of five POSIX fields, or fits no moment; the message goes after what was seen."""


class Cron:
    """One expression; ``text`` is as given, with single spaces.

    ``is_times_of_day``: each time that fits is met once a day (see above). Raises CronError.
    """

    def __init__(self, text: str) -> None:
        parts = text.split()
        _check(parts)
        self.text = " ".join(parts)
        self._sent = " ".join(",".join(map(_without_idle_step, part.split(","))) for part in parts)
        self.is_times_of_day = not (parts[0].startswith("*") or parts[1].startswith("*"))
        try:
            next(CronSim(self._sent, datetime(2000, 1, 1)))
        except (CronSimError, StopIteration) as error:
            raise CronError(_refusal(self._sent, error)) from None

    def moments(self, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
        """The moments in UTC later than ``after``, in order; it ends where there is none for 50 years."""
        found = self._times_of_day(zone, after) if self.is_times_of_day else self._fitting_minutes(zone, after)
        return (moment for moment in found if moment > after)

    def _times_of_day(self, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
        last = after
        # A day earlier: what a gap skipped before ``after`` may be meant later than it.
        for local in self.local_times(after.astimezone(zone).replace(tzinfo=None) - timedelta(days=1)):
            moment = local.replace(tzinfo=zone).astimezone(UTC)
            if moment.astimezone(zone).replace(tzinfo=None) != local:
                moment = first_change(zone, moment - timedelta(days=1), moment) or moment
            if moment > last:
                last = moment
                yield moment

    def _fitting_minutes(self, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
        here = after
        while True:
            offset, change = offset_at(zone, here), None
            for local in self.local_times((here + offset).replace(tzinfo=None)):
                moment = local.replace(tzinfo=UTC) - offset
                # From a change of the clocks on, local time goes on from another place.
                if change := first_change(zone, here, moment):
                    break
                here = moment
                yield moment
            if change is None:
                return
            if self._fits(change.astimezone(zone).replace(tzinfo=None)):
                yield change
            here = change

    def _fits(self, local: datetime) -> bool:
        return next(self.local_times(local - timedelta(seconds=1)), None) == local

    def local_times(self, after: datetime) -> Iterator[datetime]:
        """Fitting local times later than ``after``, both without zone, as if no clock ever changed."""
        return CronSim(self._sent, after)


def first_change(zone: ZoneInfo, after: datetime, until: datetime) -> datetime | None:
    """The first moment later than ``after``, and not later than ``until``, from which on another offset holds."""
    here, offset = after, offset_at(zone, after)
    while here < until:
        there = min(here + _STRIDE, until)
        if offset_at(zone, there) != offset:
            while there - here > _SECOND:
                middle = here + (there - here) / 2
                here, there = (middle, there) if offset_at(zone, middle) == offset else (here, middle)
            return there.replace(microsecond=0)
        here = there
    return None


def offset_at(zone: ZoneInfo, moment: datetime) -> timedelta:
    """What the zone's clocks are ahead of UTC."""
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def _check(parts: list[str]) -> None:
    given = " ".join(parts)
    if len(parts) == 1 and parts[0].startswith("@"):
        instead = _MACROS.get(parts[0].lower())
        raise CronError(f"{given:.80} is a short form; write {instead or 'five fields, such as 0 2 * * 1-5'}")
    if len(parts) != len(_SIZES):
        raise CronError(f"has {len(parts)} fields; write the five of POSIX: {', '.join(_SIZES)}, such as 0 2 * * 1-5")
    for part, (field, size) in zip(parts, _SIZES.items(), strict=True):
        for item in part.split(","):
            found = _ITEM.fullmatch(item)
            if found is None:
                raise CronError(f"{item[:40]!r} is no {field}; {_FORMS}")
            step = found["step"]
            if step is not None and not 1 <= int(step) < size:
                raise CronError(f"{item!r} steps by {step}, and there are {size} {field}s; step by 1 to {size - 1}")
            if found["last"] is not None:
                _check_order(field, found["first"], found["last"], int(step or 1))


def _check_order(field: str, first: str, last: str, step: int) -> None:
    """A range that runs past the end of its field, as the hours of a night do, is two, or a list where it has steps."""
    values = range(_LEAST.get(field, 0), _LEAST.get(field, 0) + _SIZES[field])
    begin, end = (_value(field, one) for one in (first, last))
    if begin not in values or end not in values or begin <= end:
        return
    over = [*range(begin, values.stop), *range(values.start, end + 1)][::step]
    spans = ((begin, values.stop - 1), (values.start, end))
    told = [f"{one}-{other}" if one != other else f"{one}" for one, other in spans] if step == 1 else map(str, over)
    raise CronError(f"{first}-{last} runs backwards; write {','.join(told)}")


def _value(field: str, written: str) -> int:
    """In a field; -1 where that has no such name."""
    names = {"month": SYMBOLIC_MONTHS, "day of week": SYMBOLIC_DAYS}.get(field, ())
    if written.isdigit():
        return int(written)
    name = written.upper()
    return names.index(name) + _LEAST.get(field, 0) if name in names else -1


def _without_idle_step(item: str) -> str:
    """A range of one value is that value, whatever its step; cronsim takes it for an open one."""
    span, slash, _ = item.partition("/")
    first, dash, last = span.partition("-")
    is_one = bool(slash and dash) and _number(first) == _number(last)
    return first if is_one else item


def _number(value: str) -> int | str:
    name = value.upper()
    return int(value) if value.isdigit() else SYMBOLIC_DAYS.index(name) if name in SYMBOLIC_DAYS else name


def _refusal(sent: str, error: Exception) -> str:
    field = str(error).removeprefix("Bad ").replace("-", " ")
    if isinstance(error, StopIteration) or (field == "day of month" and _fits_in_january(sent)):
        return "fits no date in any year and would never fire; give a day that one of its months has"
    ranges = "minutes are 0-59, hours 0-23, days 1-31, months 1-12, days of the week 0-7 (0 and 7: Sunday)"
    return f"has no such {field}; {ranges}"


def _fits_in_january(sent: str) -> bool:
    parts = sent.split()
    try:
        CronSim(" ".join((*parts[:3], "1", parts[4])), datetime(2000, 1, 1))
    except CronSimError:
        return False
    return True
