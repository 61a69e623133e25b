"""Seconds of a link: those in which something is under way, once however much there is."""

from __future__ import annotations

from workers.training.device_occupancy import at_work
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


def test_of_collectives_one_after_the_other_each_is_at_work_from_when_the_one_before_has_ended() -> None:
    assert at_work([], 1.0) == (0.0, 0.0)
    # Ready at 0 and at 1, each 3 seconds long; the third finds the link at rest from 6 to 7.
    spans = [(0.0, 3.0), (1.0, 6.0), (7.0, 9.0)]
    assert at_work(spans, 100.0) == (8.0, 8.0)
    assert at_work(spans, 5.0) == (8.0, 5.0)
    assert at_work(spans, 6.5) == (8.0, 6.0)
    assert at_work(spans, 0.0) == (8.0, 0.0)
    assert at_work([(-1.0, 2.0)], 1.0) == (2.0, 1.0)  # what came before the exchange is none of it
