"""Cron expressions in time zones, against an oracle that walks every minute."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.cron import Cron, CronError, first_change
from tests.service.cron_oracle import MINUTE, Expression, Walked, utc, walk

ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",  # half an hour
    "Africa/Casablanca",  # twice a year, a month apart
    "Asia/Kathmandu",  # never
    "America/Santiago",  # at midnight
    "Africa/Cairo",  # back into the day before
    "Asia/Beirut",
    "America/Havana",
    "Pacific/Auckland",
)
BEGIN, END = utc(2026), utc(2028)
AROUND = timedelta(days=1, hours=6)


@cache
def minutes_around_changes(name: str) -> tuple[tuple[Walked, ...], ...]:
    """Of two years all that is special, and as much of an ordinary day: walking everything takes minutes."""
    zone, here = ZoneInfo(name), BEGIN
    found = [tuple(walk(zone, BEGIN, BEGIN + AROUND))]
    while change := first_change(zone, here, END):
        found.append(tuple(walk(zone, change - AROUND, change + AROUND)))
        here = change
    return tuple(found)


def differences(cron: str, zone: str, minutes: tuple[Walked, ...]) -> list[datetime]:
    begin, end = minutes[0].moment, minutes[-1].moment
    means = Expression(cron).means
    expected = [minute.moment for minute in minutes if means(minute)]
    found = list(takewhile(lambda moment: moment <= end, Cron(cron).moments(ZoneInfo(zone), begin - MINUTE)))
    assert found == sorted(set(found))
    return sorted(set(expected) ^ set(found))


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    step = st.tuples(st.just("*") | span, st.integers(1, max(1, (high - low) // 2))).map(
        lambda pair: "{}/{}".format(*pair)
    )
    return st.lists(number.map(str) | span | step, min_size=1, max_size=2).map(",".join) | st.just("*")


CRONS = st.tuples(field(0, 59), field(0, 4), field(1, 31), field(1, 12), field(0, 7)).map(" ".join)
OFTEN = ("30 2 * * *", "*/15 * * * *", "0 */3 * * *", "* 3 * * 0", "*/30 0 * * SUN", "15,45 0-3 * * *", "30 23,0 * * *")


@pytest.mark.parametrize("zone", ZONES)
def test_times_around_every_change_of_clocks_in_two_years_are_those_of_a_minute_by_minute_walk(zone: str) -> None:
    for minutes in minutes_around_changes(zone):
        for cron in OFTEN:
            assert differences(cron, zone, minutes) == [], cron


@settings(max_examples=60)
@given(CRONS, st.sampled_from(ZONES), st.integers(0, 20))
def test_any_expression_means_the_same_as_a_minute_by_minute_walk(cron: str, zone: str, which: int) -> None:
    pieces = minutes_around_changes(zone)
    try:
        Cron(cron)
    except CronError:
        return
    assert differences(cron, zone, pieces[which % len(pieces)]) == []


def times(cron: str, zone: str, after: datetime, count: int = 2) -> list[str]:
    return [f"{moment:%m-%d %H:%M}" for moment in islice(Cron(cron).moments(ZoneInfo(zone), after), count)]


def test_a_time_that_is_skipped_is_met_at_the_end_of_the_gap_and_one_that_repeats_the_first_time() -> None:
    assert times("30 2 * * *", "Europe/Berlin", utc(2026, 3, 28, 12)) == ["03-29 01:00", "03-30 00:30"]
    assert times("30 2 * * *", "Europe/Berlin", utc(2026, 10, 24, 12)) == ["10-25 00:30", "10-26 01:30"]
    # Asked in the second of the two hours: it has been met.
    assert times("30 2 * * *", "Europe/Berlin", utc(2026, 10, 25, 1, 10), 1) == ["10-26 01:30"]


def test_a_day_that_most_years_lack_is_found() -> None:
    assert times("0 0 29 2 *", "UTC", utc(2026), 2) == ["02-29 00:00", "02-29 00:00"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0 0 30 2 *", "would never fire"),
        ("0 0 31 4,6 *", "would never fire"),
        ("0 2 * *", "has 4 fields; write the five of POSIX"),
        ("0 0 2 * * 1", "has 6 fields"),
        ("@daily", "write 0 0 * * *"),
        ("0 0 L * *", "'L' is no day of month"),
        ("0 0 * * 1#2", "'1#2' is no day of week"),
        ("*/60 * * * *", "steps by 60, and there are 60 minutes; step by 1 to 59"),
        ("60 * * * *", "minutes are 0-59"),
        ("0 24 * * *", "hours 0-23"),
        ("0 0 * * 5-1", "5-1 runs backwards; write 5-6,0-1"),
        ("0 0 * * fri-mon", "fri-mon runs backwards; write 5-6,0-1"),
        ("0 22-6 * * *", "22-6 runs backwards; write 22-23,0-6"),
        ("0 0 28-3 nov-feb *", "28-3 runs backwards; write 28-31,1-3"),
        ("0 0 1 nov-feb *", "nov-feb runs backwards; write 11-12,1-2"),
        ("0 0 * * fri-sun", "fri-sun runs backwards; write 5-6,0"),
        ("0 22-6/2 * * *", "22-6 runs backwards; write 22,0,2,4,6"),
        ("0 0 5-0 * *", "days 1-31"),
        ("0 feb-jan * * *", "hours 0-23"),
        ("0 0 1 fri-mon *", "months 1-12"),
        ("0 0 * * 8", "days of the week 0-7"),
        ("", "has 0 fields"),
    ],
)
def test_what_is_not_five_posix_fields_or_fits_no_date_is_refused_with_what_to_write(text: str, told: str) -> None:
    with pytest.raises(CronError) as caught:
        Cron(text)
    assert told in str(caught.value)
