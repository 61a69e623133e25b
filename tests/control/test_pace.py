"""Whom a controller asks, and when: soon where only an answer is waited for, else seldom."""

from __future__ import annotations

import pytest

from tests.control.desk import Desk
from workers.control.pace import BRISK_S, RECORDS_S, Pace
from workers.plan import PlanId
from workers.status import Phase, RoundRecord

RECORD = RoundRecord(
    lineage=1, round=1, generation=1, plan_id=PlanId(1, 1), cursor=8, samples=8, time=0.0, values={"loss": 1.0}
)


@pytest.mark.parametrize(
    ("phase", "records", "is_soon"),
    [
        (Phase.COMPUTE, (RECORD,), False),
        (Phase.HELD, (RECORD,), True),
        (Phase.DONE, (RECORD,), True),
        (Phase.HELD, (), False),
    ],
)
def test_who_has_trained_as_far_as_it_may_is_asked_again_soon_until_all_is_told(
    phase: Phase, records: tuple[RoundRecord, ...], is_soon: bool
) -> None:
    desk = Desk()
    ids = desk.started(1)
    desk.train(*ids)
    desk.say(ids[0], phase, records=records)
    desk.turn()
    pace = Pace()
    pace.polled(ids[0], None, True, desk.now)
    assert pace.teller(desk.state, desk.now) is None
    assert (pace.teller(desk.state, desk.now + BRISK_S + 0.001) == ids[0]) == is_soon
    assert pace.teller(desk.state, desk.now + RECORDS_S) == ids[0]


def test_who_has_come_to_rest_is_asked_at_once() -> None:
    desk = Desk()
    ids = desk.started(1)
    pace = Pace()
    pace.polled(ids[0], None, True, desk.now)
    assert pace.teller(desk.state, desk.now, is_awaited=True) == ids[0]
