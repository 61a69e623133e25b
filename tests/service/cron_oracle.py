"""What a cron expression means, by walking every minute in UTC; nothing of it is taken from the service or cronsim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
_DAYS = {"SUN": 0, "MON": 1, "TUE": 2, "WED": 3, "THU": 4, "FRI": 5, "SAT": 6}
_MONTHS = {"JAN": 1, "FEB": 2, "MAR": 3, "APR": 4, "MAY": 5, "JUN": 6} | {
    "JUL": 7,
    "AUG": 8,
    "SEP": 9,
    "OCT": 10,
    "NOV": 11,
    "DEC": 12,
}
_FIELDS: Sequence[tuple[range, Mapping[str, int]]] = (
    (range(60), {}),
    (range(24), {}),
    (range(1, 32), {}),
    (range(1, 13), _MONTHS),
    (range(8), _DAYS),
)


@dataclass(frozen=True, slots=True)
class Walked:
    """One minute: its moment, its local time without zone, and whether that local time was there before."""

    moment: datetime
    local: datetime
    is_repeated: bool
    skipped: tuple[datetime, ...]
    """Local minutes that the clocks jumped over just before."""


def walk(zone: ZoneInfo, begin: datetime, end: datetime) -> Iterator[Walked]:
    """Every whole minute from ``begin`` up to ``end``, exclusive; both in UTC."""
    before = (begin - MINUTE).astimezone(zone).replace(tzinfo=None)
    moment = begin
    while moment < end:
        aware = moment.astimezone(zone)
        local = aware.replace(tzinfo=None, fold=0)
        skipped = ()
        if local - before > MINUTE:
            skipped = tuple(before + n * MINUTE for n in range(1, (local - before) // MINUTE))
        yield Walked(moment, local, aware.fold == 1, skipped)
        before = local
        moment += MINUTE


class Expression:
    """The five fields as sets."""

    def __init__(self, text: str) -> None:
        parts = text.upper().split()
        self._sets = [_numbers(part, *field) for part, field in zip(parts, _FIELDS, strict=True)]
        self._has_times_of_day = not any(part.startswith("*") for part in parts[:2])
        self._needs_both_days = any(part.startswith("*") for part in (parts[2], parts[4]))

    def means(self, minute: Walked) -> bool:
        """Whether it fires at this minute."""
        if not self._has_times_of_day:
            return self._fits(minute.local)
        if any(self._fits(local) for local in minute.skipped):
            return True
        return not minute.is_repeated and self._fits(minute.local)

    def _fits(self, local: datetime) -> bool:
        minutes, hours, days, months, weekdays = self._sets
        if local.minute not in minutes or local.hour not in hours or local.month not in months:
            return False
        is_day, is_weekday = local.day in days, local.isoweekday() in weekdays or local.isoweekday() % 7 in weekdays
        return is_day and is_weekday if self._needs_both_days else is_day or is_weekday


def _numbers(part: str, whole: range, names: Mapping[str, int]) -> frozenset[int]:
    found: set[int] = set()
    for item in part.split(","):
        span, _, step = item.partition("/")
        first, dash, last = span.partition("-")
        low = whole[0] if span == "*" else _number(first, names)
        high = whole[-1] if span == "*" or (step and not dash) else _number(last if dash else first, names)
        found.update(range(low, high + 1, int(step or 1)))
    return frozenset(found)


def _number(text: str, names: Mapping[str, int]) -> int:
    return names[text] if text in names else int(text)


def utc(year: int, month: int = 1, day: int = 1, hour: int = 0, minute: int = 0) -> datetime:
    """A moment."""
    return datetime(year, month, day, hour, minute, tzinfo=UTC)
