"""Whom a controller asks, and when: soon where only an answer is waited for, else seldom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.control.desk import Desk
from workers.control.pace import BRISK_S, RECORDS_S, Pace
from workers.status import Phase


@pytest.mark.parametrize(
    ("line", "round", "is_awaited"),
    [
        (None, 5, False),
        (None, 98, False),
        (None, 99, True),
        (48, 4, False),
        (48, 5, True),
        (43, 5, True),
        (56, 5, False),
    ],
)
def test_records_are_asked_for_at_once_in_the_round_that_ends_at_the_line_or_at_the_end(
    line: int | None, round: int, is_awaited: bool
) -> None:
    desk = Desk()
    ids = desk.started(1)
    desk.direction = replace(desk.direction, until=line)
    desk.turn()
    desk.train(*ids, round=round)
    desk.turn()
    pace = Pace()
    pace.polled(ids[0], None, True, desk.now)
    soon = desk.now + BRISK_S + 0.001
    assert (pace.teller(desk.state, soon) == ids[0]) == is_awaited
    assert pace.teller(desk.state, desk.now + RECORDS_S) == ids[0]


def test_who_stands_at_a_line_is_asked_again_and_again() -> None:
    desk = Desk()
    ids = desk.started(1)
    desk.direction = replace(desk.direction, until=48)
    desk.turn()
    desk.train(*ids, round=6)
    desk.say(ids[0], Phase.HELD)
    desk.turn()
    pace = Pace()
    pace.polled(ids[0], None, True, desk.now)
    assert pace.teller(desk.state, desk.now) is None
    assert pace.teller(desk.state, desk.now + BRISK_S + 0.001) == ids[0]
