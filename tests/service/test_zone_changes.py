"""What people are told of changes of the clocks ahead."""

from __future__ import annotations

import pytest

from service.schedule_spec import parse_schedule_spec
from service.zone_changes import notices
from tests.service.cron_oracle import utc
from tests.service.scheduled import schedule_document

SPRING, AUTUMN = utc(2026, 3, 1), utc(2026, 10, 1)
FORWARD = "On Sunday, 29 March 2026, clocks in Europe/Berlin go forward from 02:00 to 03:00; "
BACK = "On Sunday, 25 October 2026, clocks in Europe/Berlin go back from 03:00 to 02:00; "


@pytest.mark.parametrize(
    ("cron", "spring", "autumn"),
    [
        ("30 2 * * *", "02:30, which is skipped, is met at 03:00.", "02:30 is met the first time only."),
        (
            "15,45 2 * * *",
            "02:15 and 02:45, which are skipped, are met at 03:00, once.",
            "02:15 and 02:45 are met the first time only.",
        ),
        ("*/30 * * * *", "02:00 and 02:30 do not come.", "02:00 and 02:30 come twice, and are met twice."),
        ("* 2 * * *", "60 times from 02:00 to 02:59 do not come.", "60 times from 02:00 to 02:59 come twice"),
        ("0 4 * * *", "no time of this schedule is skipped or repeated.", "no time of this schedule is skipped"),
        ("30 2 * * 1", "no time of this schedule is skipped or repeated.", "no time of this schedule is skipped"),
    ],
)
def test_what_is_skipped_or_repeated_is_told_as_it_is_met(cron: str, spring: str, autumn: str) -> None:
    for now, place, told in ((SPRING, FORWARD, spring), (AUTUMN, BACK, autumn)):
        document = schedule_document(cron=cron, time_zone="Europe/Berlin")
        (notice,) = notices(parse_schedule_spec(document, now.timestamp())[0], now.timestamp())
        assert notice.startswith(place + told)


def test_far_ahead_and_in_zones_that_never_change_nothing_is_told() -> None:
    for zone, now in (("Europe/Berlin", utc(2026, 6)), ("Asia/Kathmandu", SPRING), ("UTC", SPRING)):
        spec, _ = parse_schedule_spec(schedule_document(time_zone=zone), now.timestamp())
        assert notices(spec, now.timestamp()) == []
