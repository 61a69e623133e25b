"""What the controller decides, case by case; the simulation covers their interplay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.control.desk import FAILURE, SETTINGS, Desk, checkpoint
from workers.control.decisions import (
    HaltWorker,
    KillWorker,
    StartWorker,
    StopWorker,
)
from workers.errors import Reason
from workers.exchange_options import Options
from workers.plan import Exchange, Format, Goal, MemberSource, PlanId, Switch, TimelineKind
from workers.status import (
    Acknowledged,
    Outcome,
    Phase,
    RunGoal,
    RunPhase,
    StopCause,
)


def test_a_start_asks_for_the_wanted_workers_and_launches_when_all_are_ready() -> None:
    desk = Desk(want=2)
    desk.turn()
    desk.turn()
    assert [a.worker_id for a in desk.of(StartWorker)] == ["1.1", "1.2"]  # type: ignore[union-attr]  # narrowed by of
    desk.say("1.1", Phase.READY)
    desk.say("1.2", Phase.BUILD)
    desk.turn()
    assert desk.state.plan is None
    desk.say("1.2", Phase.READY)
    desk.turn()
    assert desk.plan.worker_ids == ("1.1", "1.2")
    assert desk.plan.switch is Switch.NOW
    assert desk.plan.precision.format is Format.FP32
    assert "fp32" in desk.plan.precision.why
    assert desk.plan.exchange.scheme == "none"
    assert "until it was measured" in desk.plan.exchange.why
    (start,) = (row for row in desk.notes() if row.kind is TimelineKind.START)
    assert start.after["communication"] == {"scheme": "none", "why": desk.plan.exchange.why}
    assert desk.rows() == [TimelineKind.START]


def test_a_plan_carries_what_the_spec_wants_between_racks() -> None:
    desk = Desk(want=1, communication={"scheme": "bf16", "options": {"across": "int4"}})
    desk.turn()
    desk.turn()
    desk.say("1.1", Phase.READY)
    desk.turn()
    assert desk.plan.exchange == Exchange(scheme="bf16", options=(("across", "int4"),))
    (start,) = (row for row in desk.notes() if row.kind is TimelineKind.START)
    assert start.after["communication"] == {"scheme": "bf16", "across": "int4", "why": "asked for in the spec"}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("bf16", ()),
        ("topk", (("fraction", 0.01), ("quantise", "int8"))),
        (
            {"scheme": "topk", "options": {"quantise": "none", "fraction": 0.1}, "loss_class": "lossy"},
            (("fraction", 0.1), ("quantise", "none")),
        ),
        ({"scheme": "powersgd", "options": {"rank": 2.0}, "loss_class": "lossy"}, (("rank", 2),)),
    ],
)
def test_a_plan_carries_the_options_of_its_scheme_filled_in_and_tells_them(asked: Any, expected: Options) -> None:
    desk = Desk(want=1, communication=asked)
    desk.turn()
    desk.turn()
    desk.say("1.1", Phase.READY)
    desk.turn()
    exchange = desk.plan.exchange
    assert exchange.options == expected
    (start,) = (row for row in desk.notes() if row.kind is TimelineKind.START)
    assert start.after["communication"] == {"scheme": exchange.scheme, **dict(expected), "why": exchange.why}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "training from the start"),
        ({"init_from": {"job": "job_x"}}, "with the weights of the latest checkpoint of job job_x"),
        ({"init_from": {"job": "job_x", "step": 4, "state": "all"}}, "the whole state of the checkpoint of step 4"),
    ],
)
def test_a_start_tells_what_it_begins_with(given: dict[str, object], told: str) -> None:
    desk = Desk(want=1, **given)
    desk.turn()
    desk.turn()
    desk.say("1.1", Phase.READY)
    desk.turn()
    assert told in desk.plan.cause.reason


def test_a_start_goes_with_the_minimum_once_others_take_too_long() -> None:
    desk = Desk(low=1, want=2)
    desk.turn()
    desk.turn()
    desk.say("1.1", Phase.READY)
    desk.turn()
    assert desk.state.plan is None
    desk.turn(after_s=SETTINGS.gather_s + 1)
    assert desk.plan.worker_ids == ("1.1",)


def test_a_finish_waits_for_the_store_before_anybody_is_stopped() -> None:
    desk = Desk()
    ids = desk.started(2)
    final = checkpoint(100, is_final=True)
    for i in ids:
        desk.say(i, Phase.DONE, generation=None, round=100, is_finished=True, checkpoints=(final,))
    desk.turn()
    assert desk.of(StopWorker) == []
    desk.acked = Acknowledged(rounds=(1, 100), checkpoints=frozenset({final.path}))
    desk.turn()
    assert len(desk.of(StopWorker)) == 2
    desk.turn(lost=dict.fromkeys(ids, "ended"))
    assert desk.state.outcome is Outcome.SUCCEEDED
    assert desk.rows() == [TimelineKind.END]


def test_a_lost_worker_halts_the_others_and_the_survivor_goes_on_at_once() -> None:
    desk = Desk()
    desk.started(2)
    desk.turn(lost={"1.2": "killed by signal 9"})
    assert desk.of(HaltWorker) == [HaltWorker("1.1", desk.plan.id)]
    desk.stop("1.1", StopCause.PEER)
    desk.turn()
    assert desk.plan.worker_ids == ("1.1",)
    assert desk.plan.source == MemberSource("1.1", 5)
    assert desk.rows() == [TimelineKind.WORKER_LOST]
    assert "killed by signal 9" in desk.plan.cause.reason
    assert [r.before["lost"] for r in desk.notes()] == [[{"worker_id": "1.2", "rank": 1, "node_id": "n"}]]
    assert [r.before["spared"] for r in desk.notes()] == [["n"]]
    assert desk.state.phase is RunPhase.RUNNING


def test_reports_from_before_the_halt_decide_nothing() -> None:
    desk = Desk()
    desk.started(2)
    desk.stop("1.1", StopCause.PEER)
    desk.say("1.1", Phase.STOPPED, halted=PlanId(0, 0))
    desk.turn(lost={"1.2": "killed"})
    before = desk.plan.id
    desk.turn()
    assert desk.plan.id == before
    assert desk.of(HaltWorker) == [HaltWorker("1.1", before)]


def test_the_same_failure_on_two_ranks_counts_once_and_too_many_save_and_fail() -> None:
    desk = Desk(max_failures=1)
    ids = desk.started(2)
    for i in ids:
        desk.stop(i, StopCause.USER, FAILURE)
    desk.turn()
    assert (desk.state.failures.num, desk.plan.failures.num) == (1, 1)
    assert desk.rows() == [TimelineKind.FAILURE]
    desk.train(*ids)
    desk.turn()
    desk.stop(ids[0], StopCause.USER, FAILURE)
    desk.stop(ids[1], StopCause.PEER)
    desk.turn()
    desk.turn()
    assert desk.plan.goal is Goal.SAVE_AND_STOP
    desk.say("1.1", Phase.SAVED, plan=desk.plan, stop=None)
    desk.acked = Acknowledged(rounds=(1, 5))
    desk.turn()
    assert len(desk.of(StopWorker)) == 2
    desk.turn(lost=dict.fromkeys(ids, "ended"))
    assert desk.state.outcome is Outcome.FAILED
    assert desk.state.reason is Reason.USER_ERROR
    assert desk.state.ending is not None
    assert desk.state.ending.failure == FAILURE


def test_a_failure_at_start_up_is_not_tried_again() -> None:
    desk = Desk(want=1)
    desk.turn()
    desk.turn()
    desk.say("1.1", Phase.FAILED, failure=replace(FAILURE, reason=Reason.DEPENDENCY_FAILED))
    desk.turn()
    assert desk.of(StopWorker) == [StopWorker("1.1")]
    desk.turn(lost={"1.1": "ended"})
    assert (desk.state.outcome, desk.state.reason) == (Outcome.FAILED, Reason.DEPENDENCY_FAILED)


def test_a_first_state_that_cannot_be_made_fails_at_once() -> None:
    desk = Desk(max_failures=3)
    desk.turn()
    desk.turn()
    for i in ("1.1", "1.2"):
        desk.say(i, Phase.READY)
    desk.turn()
    misfit = replace(FAILURE, message="init_from: does not fit", round=None)
    for i, cause, failure in (("1.1", StopCause.USER, misfit), ("1.2", StopCause.PEER, None)):
        desk.say(i, Phase.STOPPED, plan=desk.plan)
        desk.stop(i, cause, failure)
    desk.turn()
    desk.turn()
    assert desk.of(StopWorker) == [StopWorker("1.1"), StopWorker("1.2")]
    desk.turn(lost={"1.1": "ended", "1.2": "ended"})
    assert (desk.state.outcome, desk.state.reason) == (Outcome.FAILED, Reason.USER_ERROR)
    assert desk.state.detail == misfit.message


def test_no_more_workers_are_asked_for_than_a_step_has_samples() -> None:
    desk = Desk(high=16, want=16)
    desk.turn()
    desk.turn()
    assert len(desk.of(StartWorker)) == desk.state.spec.batch.global_size == 8


def test_below_the_minimum_survivors_hold_and_then_give_their_place_back() -> None:
    desk = Desk(low=2)
    desk.started(2)
    desk.turn(lost={"1.2": "killed"})
    assert desk.of(StartWorker) == [StartWorker("1.3")]
    desk.stop("1.1", StopCause.PEER)
    desk.turn()
    assert desk.state.phase is RunPhase.RECOVERING
    desk.turn(after_s=SETTINGS.hold_s / 2)
    desk.turn(after_s=SETTINGS.hold_s / 2 + 1)
    desk.turn()
    assert desk.plan.goal is Goal.SAVE_AND_STOP
    desk.say("1.1", Phase.SAVED, plan=desk.plan, stop=None)
    desk.turn()
    desk.turn(lost={"1.1": "ended", "1.3": "ended"})
    assert desk.state.outcome is Outcome.REQUEUED


def test_a_stall_in_user_code_is_killed_and_counted() -> None:
    desk = Desk()
    desk.started(1)
    desk.say("1.1", Phase.DATA, phase_age_s=301.0, reading="train_data[17]")
    desk.turn()
    assert [type(a) for a in desk.actions if isinstance(a, KillWorker)] == [KillWorker]
    assert desk.state.failure is not None
    assert (desk.state.failure.reason, desk.state.failure.rank, desk.state.failure.round) == (Reason.STALLED, 0, 6)
    told = "in phase data for 301 s, reading train_data[17] (bound 300 s, by the setting data_s)"
    assert told in desk.state.failure.message


def test_a_first_group_that_still_takes_over_its_state_is_starting_not_recovering() -> None:
    desk = Desk()
    desk.direction = replace(desk.direction, num_workers=2)
    desk.turn()
    desk.turn()
    for worker_id in ("1.1", "1.2"):
        desk.say(worker_id, Phase.READY)
    desk.turn()
    for worker_id in ("1.1", "1.2"):
        desk.say(worker_id, Phase.SYNC, plan=desk.plan, generation=desk.plan.generation)
    desk.turn()
    assert desk.state.phase is RunPhase.STARTING
    desk.train("1.1", "1.2")
    desk.turn()
    assert desk.state.phase is RunPhase.RUNNING


def test_a_users_resize_names_who_and_why_and_keeps_leavers_until_the_first_commit() -> None:
    desk = Desk()
    ids = desk.started(2)
    desk.direction = replace(desk.direction, num_workers=1, actor="user", reason="make room")
    desk.turn()
    assert (desk.plan.cause.actor, desk.plan.cause.reason) == ("user", "make room")
    assert desk.plan.switch is Switch.AGREED
    desk.train(ids[0], round=6)
    desk.stop(ids[1], StopCause.REMOVED)
    desk.turn()
    desk.turn()
    assert desk.of(StopWorker) == []
    desk.train(ids[0], round=7)
    desk.turn()
    assert desk.of(StopWorker) == [StopWorker(ids[1])]


def test_a_successor_adopts_what_trains_and_decides_nothing_before_all_have_answered() -> None:
    before = Desk()
    ids = before.started(2)
    after = Desk(term=2)
    after.listed = tuple(ids)
    after.statuses = dict(before.statuses)
    after.turn()
    assert after.actions == ()
    after.statuses = {i: replace(s, term=2) for i, s in after.statuses.items()}
    after.turn()
    assert after.rows() == [TimelineKind.CONTROLLER_LOST]
    after.turn()
    assert after.plan == before.plan
    assert after.state.phase is RunPhase.RUNNING


def test_a_pause_before_any_state_was_told_asks_before_it_lets_go() -> None:
    desk = Desk(want=1)
    desk.turn()
    desk.turn()
    desk.say("1.1", Phase.READY)
    desk.turn()
    desk.direction = replace(desk.direction, goal=RunGoal.PAUSE)
    desk.turn()
    desk.turn()
    assert desk.of(StopWorker) == []
    assert desk.of(HaltWorker) == [HaltWorker("1.1", desk.plan.id)]
    desk.train("1.1", round=3)
    desk.stop("1.1", StopCause.ABORTED)
    desk.turn()
    assert (desk.plan.goal, desk.plan.source) == (Goal.SAVE_AND_STOP, MemberSource("1.1", 3))


def test_a_pause_while_a_group_is_formed_anew_takes_it_down_before_it_saves() -> None:
    desk = Desk()
    ids = desk.started(2)
    for i in ids:
        desk.stop(i, StopCause.USER, FAILURE)
    desk.turn()
    forming = desk.plan
    assert (forming.goal, forming.generation) == (Goal.TRAIN, 2)
    desk.direction = replace(desk.direction, goal=RunGoal.PAUSE)
    desk.turn()
    desk.turn()
    assert desk.of(HaltWorker) == [HaltWorker(i, forming.id) for i in ids]
    for i in ids:
        desk.say(i, Phase.STOPPED, generation=None, halted=forming.id)
    desk.turn()
    assert (desk.plan.goal, desk.plan.switch) == (Goal.SAVE_AND_STOP, Switch.NOW)


def test_saved_workers_are_let_go_only_once_the_store_has_their_last_round_or_after_a_while() -> None:
    desk = Desk()
    ids = desk.started(2)
    desk.acked = Acknowledged(rounds=(1, 4))
    desk.direction = replace(desk.direction, goal=RunGoal.PAUSE)
    desk.turn()
    for i in ids:
        desk.say(i, Phase.SAVED, plan=desk.plan, generation=None)
    desk.turn()
    assert desk.of(StopWorker) == []
    patient = desk.state
    desk.acked = Acknowledged(rounds=(1, 5))
    desk.turn()
    assert len(desk.of(StopWorker)) == 2
    desk.state, desk.acked = patient, Acknowledged(rounds=(1, 4))
    desk.turn(after_s=SETTINGS.stop_s + 0.1)
    assert len(desk.of(StopWorker)) == 2


def test_losing_everybody_starts_a_new_lineage_from_the_newest_checkpoint() -> None:
    desk = Desk()
    ids = desk.started(2)
    desk.latest = checkpoint(4)
    desk.turn(lost=dict.fromkeys(ids, "killed"))
    assert desk.state.phase is RunPhase.RECOVERING
    desk.turn()
    for i in ("1.3", "1.4"):
        desk.say(i, Phase.READY)
    desk.turn()
    assert desk.plan.lineage == 2
    assert desk.rows() == [TimelineKind.RESTORE]
    assert [(len(row.before["lost"]), row.before["spared"]) for row in desk.notes()] == [(2, [])]


def test_workers_that_die_again_and_again_without_a_step_fail_the_attempt() -> None:
    desk = Desk(want=1)
    desk.turn()
    for n in range(1, 9):
        desk.turn()
        desk.say(f"1.{n}", Phase.READY)
        desk.turn()
        desk.turn(lost={f"1.{n}": "exit code 139"})
        if desk.state.ending is not None:
            break
    assert desk.state.ending is not None
    assert desk.state.ending.outcome is Outcome.FAILED
    assert "exit code 139" in desk.state.ending.detail
