"""Failures of the user's code: which of them add up, and which are healed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.control.desk import FAILURE, Desk
from workers.control.decisions import StopWorker
from workers.errors import Reason
from workers.plan import MemberSource
from workers.status import Phase, StopCause


def fail_at(desk: Desk, worker: str, round: int) -> None:
    """Train to this round, and fail there."""
    desk.train(worker, round=round)
    desk.turn()
    desk.stop(worker, StopCause.USER, FAILURE)
    desk.turn()
    desk.turn()


def test_failures_a_hundred_steps_apart_do_not_add_up() -> None:
    desk = Desk(max_failures=1, steps=1000)
    (worker,) = desk.started(1)
    for round in (110, 210, 320, 430):
        fail_at(desk, worker, round)
        assert (desk.state.failures.num, desk.state.ending) == (1, None)
    fail_at(desk, worker, 529)
    assert desk.state.ending is not None
    assert "bad sample (failed 2 times, never 100 steps apart; retry.max_failures=1)" in desk.state.ending.detail


def test_a_failure_that_comes_back_after_each_restore_is_not_healed_by_the_way_back_to_it() -> None:
    desk = Desk(max_failures=1, steps=1000)
    (worker,) = desk.started(1)
    fail_at(desk, worker, 500)
    desk.turn(lost={worker: "killed"})
    desk.turn()
    desk.say("1.2", Phase.READY)
    desk.turn()
    fail_at(desk, "1.2", 500)
    assert desk.state.ending is not None


def test_the_next_controller_goes_on_counting_failures_of_one_place() -> None:
    first = Desk(max_failures=1, steps=1000)
    (worker,) = first.started(1)
    fail_at(first, worker, 500)
    second = Desk(max_failures=1, steps=1000, want=1, term=2)
    second.listed = (worker,)
    second.statuses = {worker: replace(first.statuses[worker], term=2, pending=first.plan)}
    second.turn()
    second.turn()
    fail_at(second, worker, 510)
    assert second.state.failures.num == 2
    assert second.state.ending is not None


LACK = replace(FAILURE, reason=Reason.OUT_OF_MEMORY, type="OutOfMemoryError", message="memory ran out")


def test_those_whose_memory_sufficed_go_on_where_one_lacked_it_in_mid_commit() -> None:
    desk = Desk(max_failures=1)
    desk.started(2)
    desk.stop("1.2", StopCause.PEER)
    desk.say("1.1", Phase.FAILED, failure=replace(LACK, is_in_commit=True), generation=None)
    desk.turn()
    assert desk.of(StopWorker) == [StopWorker("1.1")]
    assert (desk.state.failures.num, desk.state.ending) == (1, None)
    desk.turn()
    assert desk.plan.worker_ids == ("1.2",)
    assert desk.plan.source == MemberSource("1.2", 5)


@pytest.mark.parametrize(("is_in_commit", "is_saved_first"), [(False, False), (True, True)])
def test_a_lack_of_memory_ends_the_job_under_its_name(is_in_commit: bool, is_saved_first: bool) -> None:
    desk = Desk(max_failures=0)
    desk.started(2)
    desk.stop("1.2", StopCause.PEER)
    desk.say("1.1", Phase.FAILED, failure=replace(LACK, is_in_commit=is_in_commit), generation=None)
    desk.turn()
    assert desk.state.ending is not None
    assert (desk.state.ending.reason, desk.state.ending.must_save) == (Reason.OUT_OF_MEMORY, is_saved_first)
