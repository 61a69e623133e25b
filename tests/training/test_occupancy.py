"""Seconds of a link: those in which something is under way, once however much there is."""

from __future__ import annotations

from workers.training.occupancy import Occupancy


def test_collectives_at_once_count_once_and_the_time_between_them_not_at_all() -> None:
    now_s = 0.0
    link = Occupancy(lambda: now_s)
    link.begin()
    now_s = 1.0
    link.begin()
    now_s = 3.0
    link.end(None)
    assert link.busy_s == 3.0
    now_s = 4.0
    link.end(None)
    now_s = 9.0
    assert link.busy_s == 4.0
    link.begin()
    now_s = 11.0
    assert link.busy_s == 6.0
