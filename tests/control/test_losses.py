"""The losses that may befall a job, each at its worst moment; the simulation covers their interplay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.control.desk import FAILURE, SETTINGS, Desk, checkpoint
from workers.control.decisions import HaltWorker, KillWorker, StartWorker, StopWorker
from workers.plan import CheckpointSource, MemberSource, Plan, Switch, TimelineKind
from workers.status import Acknowledged, Outcome, Phase, RunPhase, StopCause


def survive(desk: Desk, lost: dict[str, str], survivors: list[str]) -> Plan:
    """Some are lost; the others leave their group as told, and the next plan is made."""
    desk.turn(lost=lost)
    assert {a.worker_id for a in desk.of(HaltWorker)} == set(survivors)  # type: ignore[union-attr]  # narrowed by of
    for survivor in survivors:
        desk.stop(survivor, StopCause.PEER)
    desk.turn()
    return desk.plan


def lost_of(desk: Desk) -> list[str]:
    return [entry["worker_id"] for row in desk.notes() for entry in row.before.get("lost", ())]


def grown(desk: Desk, ids: list[str], newcomer: str) -> None:
    """A newcomer is ready and named by a plan that waits to be agreed."""
    desk.direction = replace(desk.direction, num_workers=len(ids) + 1)
    desk.turn()
    desk.say(newcomer, Phase.READY)
    desk.turn()
    assert desk.plan.worker_ids == (*ids, newcomer)
    assert desk.plan.switch is Switch.AGREED


def test_without_rank_0_the_survivor_that_is_furthest_gives_its_state() -> None:
    desk = Desk()
    ids = desk.started(3)
    desk.train("1.3", round=6)
    desk.turn()
    plan = survive(desk, {"1.1": "killed"}, ids[1:])
    assert plan.worker_ids == ("1.3", "1.2")
    assert (plan.source, plan.lineage) == (MemberSource("1.3", 6), 1)


def test_a_newcomer_lost_while_it_receives_state_costs_only_the_group() -> None:
    desk = Desk()
    ids = desk.started(2)
    grown(desk, ids, "1.3")
    wanted = desk.plan
    for i in ids:
        desk.say(i, Phase.SYNC, plan=wanted, generation=wanted.generation)
    desk.say("1.3", Phase.SYNC, plan=wanted, generation=wanted.generation)
    desk.turn()
    plan = survive(desk, {"1.3": "killed"}, ids)
    assert plan.worker_ids == tuple(ids)
    assert (plan.source, plan.lineage, plan.generation) == (MemberSource("1.1", 5), 1, wanted.generation + 1)
    assert desk.rows() == [TimelineKind.WORKER_LOST]


def test_a_source_lost_while_it_gives_its_state_leaves_it_to_the_next() -> None:
    desk = Desk()
    ids = desk.started(2)
    grown(desk, ids, "1.3")
    for i in (*ids, "1.3"):
        desk.say(i, Phase.SYNC, plan=desk.plan, generation=desk.plan.generation)
    desk.turn()
    plan = survive(desk, {"1.1": "killed"}, ["1.2", "1.3"])
    assert plan.worker_ids == ("1.2", "1.3")
    assert plan.source == MemberSource("1.2", 5)


@pytest.mark.parametrize("victim", ["1.2", "1.3"])
def test_a_loss_before_a_resize_is_agreed_comes_first_and_the_resize_after(victim: str) -> None:
    desk = Desk()
    ids = desk.started(2)
    grown(desk, ids, "1.3")
    survivors = [i for i in (*ids, "1.3") if i != victim]
    for i in ids:
        desk.statuses[i] = replace(desk.statuses[i], pending=desk.plan)
    desk.turn(lost={victim: "killed"})
    for i in [i for i in ids if i != victim]:
        desk.stop(i, StopCause.PEER)
    desk.statuses |= {i: replace(s, halted=desk.plan.id) for i, s in desk.statuses.items()}
    desk.turn()
    assert desk.plan.switch is Switch.NOW
    assert set(desk.plan.worker_ids) == set(survivors)
    desk.train(*survivors, round=6)
    for _ in range(3):
        desk.turn()
    newcomer = next(i for i in desk.state.workers if i not in survivors)
    desk.say(newcomer, Phase.READY)
    desk.turn()
    assert desk.plan.worker_ids == (*survivors, newcomer)


def test_a_loss_in_the_first_step_keeps_the_state_that_was_made() -> None:
    desk = Desk()
    ids = desk.started(2)
    desk.train(*ids, round=0)
    desk.turn()
    plan = survive(desk, {"1.1": "killed"}, ["1.2"])
    assert (plan.source, plan.lineage) == (MemberSource("1.2", 0), 1)


def test_a_loss_before_any_state_was_made_starts_anew() -> None:
    desk = Desk()
    desk.turn()
    desk.turn()
    for i in ("1.1", "1.2"):
        desk.say(i, Phase.READY)
    desk.turn()
    for i in ("1.1", "1.2"):
        desk.say(i, Phase.SYNC, plan=desk.plan, generation=desk.plan.generation)
    desk.turn()
    desk.turn(lost={"1.1": "killed"})
    desk.stop("1.2", StopCause.PEER)
    desk.turn()
    newcomer = next(i for i in desk.state.workers if i != "1.2")
    desk.say(newcomer, Phase.READY)
    desk.turn()
    assert set(desk.plan.worker_ids) == {"1.2", newcomer}
    assert desk.plan.lineage == 2
    assert desk.state.ending is None


def test_rank_0_lost_after_the_last_step_leaves_the_final_checkpoint_to_the_survivor() -> None:
    desk = Desk()
    ids = desk.started(2)
    for i in ids:
        desk.say(i, Phase.DONE, generation=None, round=100, is_finished=True)
    desk.say("1.1", Phase.SAVE, generation=None, round=100, is_finished=True)
    desk.turn()
    plan = survive(desk, {"1.1": "killed"}, ["1.2"])
    assert (plan.worker_ids, plan.source) == (("1.2",), MemberSource("1.2", 100))
    final = checkpoint(100, is_final=True)
    desk.say("1.2", Phase.DONE, plan=plan, generation=None, stop=None, checkpoints=(final,))
    desk.acked = Acknowledged(rounds=(1, 100), checkpoints=frozenset({final.path}))
    desk.turn()
    assert StopWorker("1.2") in desk.actions
    desk.turn(lost=dict.fromkeys(desk.state.workers, "ended"))
    assert desk.state.outcome is Outcome.SUCCEEDED


def test_two_lost_at_once_are_one_loss_that_names_both() -> None:
    desk = Desk()
    ids = desk.started(4)
    plan = survive(desk, {"1.1": "killed", "1.4": "killed"}, ["1.2", "1.3"])
    assert plan.worker_ids == ("1.2", "1.3")
    assert lost_of(desk) == ["1.1", "1.4"]
    assert len(ids) == 4


def test_a_survivor_for_whom_there_is_no_place_any_more_is_let_go_after_the_first_commit() -> None:
    desk = Desk()
    desk.started(3)
    desk.direction = replace(desk.direction, num_workers=1)
    plan = survive(desk, {"1.1": "killed"}, ["1.2", "1.3"])
    assert plan.worker_ids == ("1.2",)
    desk.train("1.2", round=5)
    for _ in range(2):
        desk.turn()
        assert desk.of(StopWorker) == []
    desk.train("1.2", round=6)
    desk.turn()
    assert desk.of(StopWorker) == [StopWorker("1.3")]


def test_one_survivor_of_many_goes_on_alone_while_others_come() -> None:
    desk = Desk()
    desk.started(4)
    desk.turn(lost=dict.fromkeys(("1.1", "1.2", "1.3"), "killed"))
    assert len(desk.of(StartWorker)) == 3
    desk.stop("1.4", StopCause.PEER)
    desk.turn()
    assert (desk.plan.worker_ids, desk.plan.source) == (("1.4",), MemberSource("1.4", 5))
    assert desk.state.phase is RunPhase.RUNNING


def test_a_worker_lost_with_the_controller_is_found_missing_and_named() -> None:
    before = Desk()
    ids = before.started(3)
    after = Desk(term=2, want=3)
    after.listed = ("1.2", "1.3")
    after.statuses = {i: replace(before.statuses[i], term=2) for i in ids[1:]}
    for i in ids[1:]:
        after.say(i, Phase.EXCHANGE)
    after.turn()
    assert after.rows() == [TimelineKind.CONTROLLER_LOST]
    plan = survive(after, {}, ["1.2", "1.3"])
    assert (plan.worker_ids, plan.source, plan.lineage) == (("1.2", "1.3"), MemberSource("1.2", 5), 1)
    assert after.rows() == [TimelineKind.WORKER_LOST]
    assert lost_of(after) == ["1.1"]


def test_a_stopped_process_is_taken_out_within_the_bound_and_told() -> None:
    desk = Desk()
    desk.started(2)
    waited_s = 0.0
    while not desk.of(KillWorker):
        desk.turn(after_s=1.0, silent=("1.2",))
        waited_s += 1.0
        assert waited_s <= SETTINGS.liveness_s + 2
    desk.stop("1.1", StopCause.ABORTED)
    desk.turn(silent=("1.2",))
    assert desk.plan.worker_ids == ("1.1",)
    assert desk.rows() == [TimelineKind.WORKER_LOST]
    assert "silent for" in desk.plan.cause.reason


def test_an_exception_beside_a_loss_is_counted_once_and_both_are_told() -> None:
    desk = Desk(max_failures=1)
    desk.started(3)
    desk.stop("1.2", StopCause.USER, FAILURE)
    desk.turn(lost={"1.1": "killed"})
    desk.stop("1.3", StopCause.PEER)
    desk.stop("1.2", StopCause.USER, FAILURE)
    desk.turn()
    assert (desk.state.failures.num, desk.state.ending) == (1, None)
    assert set(desk.plan.worker_ids) == {"1.2", "1.3"}
    assert desk.rows() == [TimelineKind.FAILURE]
    assert lost_of(desk) == ["1.1"]
    assert "worker 1.1: killed" in desk.plan.cause.reason


def test_states_of_which_nobody_knows_the_right_one_are_given_up_for_the_last_checkpoint() -> None:
    desk = Desk(max_failures=3)
    ids = desk.started(2)
    differ = replace(FAILURE, type="ReplicaError", message="ranks 0 and 1 hold different states")
    desk.say("1.1", Phase.FAILED, generation=None, failure=differ)
    desk.say("1.2", Phase.EXCHANGE)
    desk.turn()
    assert desk.of(StopWorker) == [StopWorker("1.1")]
    desk.turn()
    assert desk.of(HaltWorker) == [HaltWorker("1.2", desk.plan.id)]
    desk.say("1.2", Phase.FAILED, generation=None, failure=differ, halted=desk.plan.id)
    desk.latest = checkpoint(3)
    desk.turn()
    desk.turn(lost=dict.fromkeys(ids, "ended"))
    for worker_id in desk.state.workers:
        desk.say(worker_id, Phase.READY)
    desk.turn()
    assert desk.plan.source == CheckpointSource("p3", 3, 24)
    assert set(desk.plan.worker_ids).isdisjoint(ids)
    assert desk.rows() == [TimelineKind.RESTORE]
    assert f"worker 1.2: {differ.message}" in desk.notes()[0].reason
    assert desk.state.failures.num == 1  # whatever the number of workers that it took to tell


def test_who_waits_for_one_that_is_at_work_is_not_stuck_but_all_are_that_wait_for_each_other_for_long() -> None:
    """A part of many micro-batches may take a slow worker any time, each of them within its bound."""
    desk = Desk()
    desk.started(2)
    bound_s = SETTINGS.phase_bounds_s[Phase.EXCHANGE]
    for phase, age_s, is_broken in (
        (Phase.COMPUTE, 1.0, False),
        (Phase.DATA, 1.0, False),
        (Phase.EXCHANGE, bound_s, False),
        (Phase.EXCHANGE, bound_s + 1.0, True),
    ):
        desk.say("1.1", Phase.EXCHANGE, phase_age_s=10 * bound_s)
        desk.say("1.2", phase, phase_age_s=age_s)
        desk.turn()
        assert bool(desk.of(HaltWorker)) is is_broken
