"""Times of cron expressions in ten zones over two years, against a walk through every minute; takes minutes.

Ends with 1 if a moment differs. What cronsim says by itself is counted beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim

from service.cron import Cron
from tests.benchmarks.command import parser_of
from tests.benchmarks.figures import append_result, circumstances, versions
from tests.service.cron_oracle import MINUTE, Expression, walk
from tests.service.test_cron import BEGIN, END, OFTEN, ZONES

KIND = "schedule_times"
CRONS = (
    *OFTEN,
    "0 2 * * 1-5",
    "*/20 1-3 * * *",
    "0 0 29 2 *",
    "0 0 13 * 5",
    "59 23 28-31 * *",
    "5 0 * MAR,SEP-NOV *",
    "*/7 23,0 * * 4,5",
    "0 0 1 */2 *",
    "0 3 * * *",
)


def expected(zone: ZoneInfo) -> tuple[int, list[list[datetime]]]:
    """How many minutes there are, and at which of them each expression is met."""
    tests = [(Expression(cron).means, list[datetime]()) for cron in CRONS]
    number = 0
    for minute in walk(zone, BEGIN, END):
        number += 1
        for means, moments in tests:
            if means(minute):
                moments.append(minute.moment)
    return number, [moments for _, moments in tests]


def until_end(moments: Iterable[datetime]) -> Iterator[datetime]:
    return takewhile(lambda moment: moment < END, (moment.astimezone(UTC) for moment in moments))


def main() -> int:
    options = parser_of(__doc__).parse_args()
    num_minutes = num_moments = num_wrong = num_wrong_alone = 0
    for name in ZONES:
        zone = ZoneInfo(name)
        number, lists = expected(zone)
        num_minutes += number
        for cron, moments in zip(CRONS, lists, strict=True):
            num_moments += len(moments)
            found = list(until_end(Cron(cron).moments(zone, BEGIN - MINUTE)))
            num_wrong += len(set(found) ^ set(moments)) or int(found != moments)
            alone = until_end(CronSim(cron, (BEGIN - MINUTE).astimezone(zone)))
            num_wrong_alone += len(set(alone) ^ set(moments))
        print(f"{name}: {number} minutes, {num_wrong} moments differ so far, {num_wrong_alone} of cronsim", flush=True)
    result = {"minutes": num_minutes, "moments": num_moments, "differ": num_wrong, "cronsim_differs": num_wrong_alone}
    print(", ".join(f"{key} {value}" for key, value in result.items()))
    if options.output:
        append_result(options.output, KIND, result | circumstances() | {"versions": versions("cronsim", "tzdata")})
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
