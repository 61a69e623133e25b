"""Emptying a node: others take the members' place first, and who finds no place goes without harm."""

from __future__ import annotations

from dataclasses import replace

from tests.control.desk import Desk, build_info
from workers.control.decisions import StartWorker, StopWorker
from workers.control.evacuate import AHEAD_S
from workers.errors import Reason
from workers.plan import Goal, Switch, TimelineKind
from workers.status import AvoidedNode, Outcome, Phase, StopCause

OLD = AvoidedNode(node_id="old", actor="admin", reason="node old is drained: new kernel")


def on(desk: Desk, worker_id: str, node_id: str, phase: Phase) -> None:
    desk.say(worker_id, phase, build=replace(build_info(), node_id=node_id))


def drained(low: int = 1, goes_after_s: float | None = None) -> tuple[Desk, list[str]]:
    """Two workers train, the second on a node that is drained now, and is taken away after some seconds."""
    desk = Desk(low=low)
    ids = desk.started(2)
    on(desk, ids[1], "old", Phase.COMPUTE)
    goes_at = None if goes_after_s is None else desk.unix_s + goes_after_s
    desk.direction = replace(desk.direction, avoid=(replace(OLD, goes_at=goes_at),))
    desk.turn()
    return desk, ids


def test_a_drained_node_is_left_only_when_another_worker_is_ready() -> None:
    desk, (first, leaver) = drained()
    assert desk.of(StartWorker) == [StartWorker("1.3", frozenset({"old"}))]
    desk.turn()
    assert desk.actions == ()
    assert desk.plan.worker_ids == (first, leaver)
    on(desk, "1.3", "new", Phase.READY)
    desk.turn()
    assert desk.plan.worker_ids == (first, "1.3")
    assert desk.plan.switch is Switch.AGREED
    (row,) = desk.notes()
    assert (row.kind, row.actor, row.reason) == (TimelineKind.RESIZE, "admin", OLD.reason)
    desk.train(first, "1.3", round=6)
    desk.stop(leaver, StopCause.REMOVED)
    desk.turn()
    desk.turn()
    desk.train(first, "1.3", round=7)
    desk.turn()
    assert desk.of(StopWorker) == [StopWorker(leaver)]
    desk.statuses.pop(leaver)
    desk.turn(lost={leaver: "it ended"})
    desk.turn(after_s=100.0)
    assert desk.actions == ()


def test_without_room_elsewhere_the_others_go_on_alone() -> None:
    desk, (first, _) = drained()
    desk.turn(after_s=desk.state.settings.evacuate_s - 1.0)
    assert desk.plan.num_members == 2
    desk.turn(after_s=2.0)
    assert desk.plan.worker_ids == (first,)


def test_with_fewer_than_the_minimum_elsewhere_the_job_saves_and_gives_its_place_back() -> None:
    desk, _ = drained(low=2)
    desk.turn(after_s=desk.state.settings.evacuate_s + 1.0)
    end = desk.state.ending
    assert end is not None
    assert (end.outcome, end.reason, end.must_save) == (Outcome.REQUEUED, Reason.PREEMPTED, True)
    assert OLD.reason in end.detail
    desk.turn()
    assert desk.plan.goal is Goal.SAVE_AND_STOP


def test_a_node_that_goes_sooner_is_left_before_it_goes() -> None:
    desk, (first, _) = drained(goes_after_s=30.0)
    desk.turn(after_s=30.0 - AHEAD_S - 1.0)
    assert desk.plan.num_members == 2
    desk.turn(after_s=1.0)
    assert desk.plan.worker_ids == (first,)


def test_with_nobody_elsewhere_the_job_is_saved_before_the_node_goes() -> None:
    desk, _ = drained(low=2, goes_after_s=30.0)
    desk.turn(after_s=30.0 - AHEAD_S)
    assert desk.state.ending is not None
    assert desk.state.ending.must_save


def test_a_newcomer_on_a_node_to_avoid_is_not_taken_in() -> None:
    desk, (first, leaver) = drained()
    on(desk, "1.3", "old", Phase.READY)
    desk.turn()
    assert desk.of(StopWorker) == [StopWorker("1.3")]
    desk.turn()
    assert desk.of(StartWorker) == [StartWorker("1.4", frozenset({"old"}))]
    assert desk.plan.worker_ids == (first, leaver)


def test_a_worker_that_waits_for_a_place_elsewhere_is_taken_back_when_the_node_may_be_used_again() -> None:
    desk, ids = drained()
    desk.direction = replace(desk.direction, avoid=())
    desk.turn()
    assert desk.of(StopWorker) == [StopWorker("1.3")]
    desk.turn(lost={"1.3": "it was taken back"})
    desk.turn(after_s=100.0)
    assert desk.actions == ()
    assert list(desk.plan.worker_ids) == ids
