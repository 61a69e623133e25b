"""What is told of an end: why the last commit is saved, how the attempt ended, and every record before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.control.desk import FAILURE, Desk
from workers.control.decisions import StopWorker
from workers.control.ending import MAX_SAVES, without_storage
from workers.errors import Failure, Reason
from workers.plan import CheckpointSource, Goal
from workers.status import Acknowledged, Outcome, Phase, RunGoal, StopCause

DIVERGED = Failure(reason=Reason.DIVERGED, type="DivergedError", message="not finite", round=6)


def told_end(desk: Desk, worker_id: str) -> tuple[str, str, str]:
    """Let the worker save and go; why it saved, and the key and words of the last row."""
    assert desk.plan.goal is Goal.SAVE_AND_STOP
    desk.say(worker_id, Phase.SAVED, plan=desk.plan, stop=None)
    desk.acked = Acknowledged(rounds=(1, 5))
    desk.turn()
    desk.turn(lost={worker_id: "ended"})
    row = desk.notes()[-1]
    return desk.plan.cause.reason, row.key, row.reason


def test_a_pause_by_a_person_is_told_as_one() -> None:
    desk = Desk()
    (worker,) = desk.started(1)
    desk.direction = replace(desk.direction, goal=RunGoal.PAUSE, actor="user")
    desk.turn()
    assert told_end(desk, worker) == ("saving before the pause", "end/paused", "everything is released")


def test_a_service_that_stops_sends_the_job_back_to_the_queue() -> None:
    desk = Desk()
    (worker,) = desk.started(1)
    desk.direction = replace(desk.direction, goal=RunGoal.PAUSE, reason="the service is being stopped")
    desk.turn()
    assert told_end(desk, worker) == (
        "saving before the job goes back to the queue: the service is being stopped",
        "end/requeued",
        "everything is released: the service is being stopped",
    )


def test_a_failure_tells_what_failed_beside_the_checkpoint_before_it() -> None:
    desk = Desk(max_failures=0)
    (worker,) = desk.started(1)
    desk.stop(worker, StopCause.USER, FAILURE)
    desk.turn()
    desk.turn()
    why = "ValueError: bad sample (failed once; retry.max_failures=0)"
    assert told_end(desk, worker) == (f"saving before the job fails: {why}", "end/failed", f"failed: {why}")


def diverged(desk: Desk, worker: str) -> None:
    desk.say(worker, Phase.FAILED, failure=DIVERGED)
    desk.turn()


def test_a_failure_that_nothing_helps_waits_until_all_before_it_is_stored() -> None:
    desk = Desk()
    (worker,) = desk.started(1)
    diverged(desk, worker)
    assert desk.of(StopWorker) == []
    desk.acked = Acknowledged(rounds=(1, 5))
    desk.turn()
    assert desk.of(StopWorker) == [StopWorker(worker)]


def test_a_store_that_is_away_holds_a_failure_up_for_a_while_only() -> None:
    desk = Desk()
    (worker,) = desk.started(1)
    diverged(desk, worker)
    desk.turn(after_s=desk.state.settings.stop_s + 0.1)
    assert desk.of(StopWorker) == [StopWorker(worker)]


@pytest.mark.parametrize("goal", [RunGoal.RUN, RunGoal.PAUSE])
def test_a_state_that_was_only_restored_has_no_record_to_wait_for(goal: RunGoal) -> None:
    desk = Desk()
    (worker,) = desk.started(1)
    restored = replace(desk.plan, source=CheckpointSource("p5", 5, 40))
    desk.say(worker, Phase.COMPUTE, plan=restored)
    desk.turn()
    if goal is RunGoal.RUN:
        diverged(desk, worker)
    else:
        desk.direction = replace(desk.direction, goal=goal)
        desk.turn()
        desk.say(worker, Phase.SAVED, plan=desk.plan, stop=None)
        desk.turn()
    assert desk.of(StopWorker) == [StopWorker(worker)]


def play_saves_that_fail(desk: Desk, worker: str, num_turns: int = 300) -> int:
    """Each save that is asked for fails; how many were asked for until the attempt ended."""
    broken = replace(FAILURE, message="no space left")
    asked = 0
    for _ in range(num_turns):
        offer = desk.state.offers.get(worker)
        if offer is not None and offer.goal is Goal.SAVE_AND_STOP and desk.statuses[worker].plan != offer:
            asked += 1
            desk.say(worker, Phase.STOPPED, plan=offer, pending=None)
            desk.stop(worker, StopCause.USER, broken)
        desk.turn(after_s=1.0)
        if StopWorker(worker) in desk.actions:
            desk.turn(lost={worker: "it ended"})
            break
    return asked


@pytest.mark.parametrize(("goal", "outcome"), [(RunGoal.PAUSE, Outcome.PAUSED), (RunGoal.RUN, Outcome.FAILED)])
def test_a_state_that_cannot_be_saved_ends_with_that_said(goal: RunGoal, outcome: Outcome) -> None:
    desk = Desk(max_failures=0)
    (worker,) = desk.started(1)
    desk.acked = Acknowledged(rounds=(1, 5))
    desk.direction = replace(desk.direction, goal=goal, actor="user")
    if goal is RunGoal.RUN:
        desk.stop(worker, StopCause.USER, FAILURE)
    assert play_saves_that_fail(desk, worker) in (MAX_SAVES, MAX_SAVES + 1)
    assert desk.state.outcome is outcome
    assert f"could not be saved in {MAX_SAVES} tries (no space left)" in desk.state.detail


def test_a_pause_that_nobody_could_save_for_says_why() -> None:
    """Replicas that differ: nobody knows which state is right, so none is saved."""
    desk = Desk()
    workers = desk.started(2)
    desk.direction = replace(desk.direction, goal=RunGoal.PAUSE, actor="user", reason="over lunch")
    desk.turn()
    for worker in workers:
        desk.say(worker, Phase.FAILED, generation=None, failure=replace(FAILURE, message="ranks differ"))
    desk.turn()
    desk.turn(lost=dict.fromkeys(workers, "it ended"))
    assert desk.state.outcome is Outcome.PAUSED
    assert desk.state.detail == "over lunch; the last steps could not be saved (ranks differ)"


def test_a_failure_that_still_saves_can_be_cancelled() -> None:
    desk = Desk(max_failures=0)
    (worker,) = desk.started(1)
    desk.stop(worker, StopCause.USER, FAILURE)
    desk.turn()
    desk.turn()
    assert desk.plan.goal is Goal.SAVE_AND_STOP
    desk.direction = replace(desk.direction, goal=RunGoal.CANCEL, actor="user")
    desk.turn()
    assert StopWorker(worker) in desk.actions


def test_a_state_that_was_not_told_of_yet_is_saved_before_the_job_waits_for_its_storage() -> None:
    desk = Desk(want=1)
    desk.turn()
    desk.turn()
    desk.say("1.1", Phase.READY)
    desk.turn()
    desk.state = without_storage(desk.state, OSError("no route"))
    desk.turn()
    desk.train("1.1")
    desk.turn()
    assert desk.of(StopWorker) == []
    desk.stop("1.1", StopCause.ABORTED)
    desk.turn()
    why = "checkpoints cannot be looked for: OSError: no route"
    told = (f"saving before the job goes back to the queue: {why}", "end/requeued", f"everything is released: {why}")
    assert told_end(desk, "1.1") == told
