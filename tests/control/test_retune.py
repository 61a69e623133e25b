"""Orders of another learning rate or batch: one plan of the same group each, which outlives all that may happen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.control.desk import Desk, checkpoint
from workers.control.decisions import Action, Note
from workers.plan import Goal, MemberSource, Switch, TimelineKind
from workers.run_settings import RunSettings
from workers.status import Acknowledged, Phase, RunGoal, StopCause

ORDER = RunSettings(n=1, lr=0.5, global_batch=4, actor="pbt", reason="among the worst")


def ordered(desk: Desk, order: RunSettings) -> None:
    desk.direction = replace(desk.direction, settings=order)
    desk.turn()


def tuning(desk: Desk) -> tuple[int, int, float]:
    return (desk.plan.settings, desk.plan.global_batch, desk.plan.lr.lr)


def test_an_order_is_a_plan_of_the_same_group_and_a_row_that_says_who_and_why() -> None:
    desk = Desk()
    ids = desk.started(2)
    before = desk.plan
    ordered(desk, ORDER)
    assert tuning(desk) == (1, 4, 0.5)
    assert (desk.plan.generation, desk.plan.members) == (before.generation, before.members)
    assert desk.plan.switch is Switch.AGREED
    [row] = desk.notes()
    assert (row.kind, row.actor, row.reason) == (TimelineKind.BATCH, "pbt", "among the worst")
    assert (row.before, row.after) == ({"global_batch": 8, "lr": 0.001}, {"global_batch": 4, "lr": 0.5})
    desk.train(*ids, round=6)
    plan_id = desk.plan.id
    desk.turn()
    desk.turn()
    assert desk.plan.id == plan_id  # carried out once


def test_another_rate_alone_is_told_as_such() -> None:
    desk = Desk()
    desk.started(2)
    ordered(desk, replace(ORDER, global_batch=8))
    [row] = desk.notes()
    assert (row.kind, row.after) == (TimelineKind.LR, {"lr": 0.5})


def test_a_rate_that_rises_is_warmed_up_again_and_one_that_falls_is_not() -> None:
    desk = Desk()
    ids = desk.started(2)
    build = desk.statuses["1.1"].build
    assert build is not None
    cursor, total, last = 40, build.total_samples, desk.plan.lr
    ordered(desk, replace(ORDER, global_batch=8))
    ramp = desk.plan.lr.ramp
    assert ramp is not None
    assert (ramp.begin, ramp.samples) == (cursor, total * 0.05)
    whole = replace(desk.plan.lr, ramp=None)
    assert ramp.share == pytest.approx(last.at(cursor, total, 8) / whole.at(cursor, total, 8))
    assert ramp.share < 0.01
    desk.train(*ids, round=6)
    desk.turn()
    ordered(desk, replace(ORDER, n=2, global_batch=8, lr=1e-6))
    assert (desk.plan.settings, desk.plan.lr.ramp) == (2, None)


def test_a_loss_before_the_order_is_agreed_comes_first_and_the_order_after() -> None:
    desk = Desk()
    desk.started(2)
    ordered(desk, ORDER)
    desk.say("1.1", Phase.STOPPED, generation=None, halted=desk.plan.id)
    desk.turn(lost={"1.2": "killed"})
    desk.turn()
    assert (desk.plan.cause.kind, tuning(desk)) == (TimelineKind.WORKER_LOST, (0, 8, 0.001))
    desk.train("1.1", round=6)
    desk.turn()
    desk.turn()
    assert tuning(desk) == (1, 4, 0.5)


def test_a_resize_and_a_loss_keep_what_was_ordered() -> None:
    desk = Desk()
    ids = desk.started(2)
    ordered(desk, ORDER)
    desk.train(*ids, round=6)
    desk.turn()
    desk.direction = replace(desk.direction, num_workers=3)
    desk.turn()
    desk.say("1.3", Phase.READY)
    desk.turn()
    assert (desk.plan.num_members, tuning(desk)) == (3, (1, 4, 0.5))
    desk.train(*ids, "1.3", round=7)
    desk.turn()
    for i in ("1.1", "1.3"):
        desk.say(i, Phase.STOPPED, generation=None, halted=desk.plan.id)
    desk.turn(lost={"1.2": "killed"})
    desk.turn()
    assert (desk.plan.num_members, tuning(desk)) == (2, (1, 4, 0.5))


def test_a_start_from_a_checkpoint_is_by_the_newest_order() -> None:
    desk = Desk()
    desk.latest = checkpoint(5)
    desk.direction = replace(desk.direction, settings=replace(ORDER, n=3))
    desk.turn()
    desk.turn()
    for i in ("1.1", "1.2"):
        desk.say(i, Phase.READY)
    desk.turn()
    assert tuning(desk) == (3, 4, 0.5)


def test_the_next_controller_takes_the_order_for_carried_out_where_the_workers_do() -> None:
    desk = Desk()
    ids = desk.started(2)
    ordered(desk, ORDER)
    desk.train(*ids, round=6)
    desk.turn()
    after = Desk(term=2)
    after.direction, after.listed = desk.direction, tuple(ids)
    after.statuses = {i: replace(status, term=2) for i, status in desk.statuses.items()}
    told: tuple[Action, ...] = ()
    for _ in range(3):
        after.turn()
        told += after.actions
    assert tuning(after) == (1, 4, 0.5)
    assert [a.row.kind for a in told if isinstance(a, Note)] == [TimelineKind.CONTROLLER_LOST]
    ordered(after, replace(ORDER, n=2, lr=0.25))
    assert tuning(after) == (2, 4, 0.25)
    assert isinstance(after.plan.source, MemberSource)


def test_a_batch_of_fewer_samples_than_workers_lets_some_go_first() -> None:
    desk = Desk()
    desk.started(4)
    ordered(desk, replace(ORDER, global_batch=2))
    assert (desk.plan.num_members, desk.plan.settings) == (2, 0)
    desk.train("1.1", "1.2", round=6)
    desk.stop("1.3", cause=StopCause.REMOVED)
    desk.stop("1.4", cause=StopCause.REMOVED)
    desk.turn()
    desk.turn()
    assert (desk.plan.num_members, tuning(desk)) == (2, (1, 2, 0.5))


def test_whoever_saves_to_end_is_not_changed_any_more() -> None:
    desk = Desk()
    desk.started(2)
    desk.direction = replace(desk.direction, goal=RunGoal.PAUSE, settings=ORDER)
    desk.acked = Acknowledged(rounds=(1, 5))
    desk.turn()
    assert (desk.plan.goal, desk.plan.settings) == (Goal.SAVE_AND_STOP, 0)


def stand(desk: Desk, *worker_ids: str, age_s: float = 0.0) -> None:
    """These stand at the line of the plan that was offered, after round 5."""
    desk.train(*worker_ids)
    for worker_id in worker_ids:
        desk.say(worker_id, Phase.HELD, phase_age_s=age_s)


def test_a_line_is_moved_by_plans_of_the_same_group_whose_rows_say_how_far_it_may_train() -> None:
    desk = Desk()
    ids = desk.started(2)
    for line, where in ((48, "until 48 samples"), (90, "until 90 samples"), (None, "to its end")):
        before = desk.plan
        desk.direction = replace(desk.direction, until=line)
        desk.turn()
        assert (desk.plan.until, desk.plan.switch) == (line, Switch.AGREED)
        [row] = desk.notes()
        assert (row.kind, row.actor, row.reason) == (TimelineKind.LIMIT, "sweep", f"its sweep lets it train {where}")
        assert (desk.plan.generation, desk.plan.members) == (before.generation, before.members)
        stand(desk, *ids)
        plan_id = desk.plan.id
        desk.turn()
        assert desk.plan.id == plan_id  # drawn once


def test_a_line_behind_is_not_drawn_and_one_in_force_outlives_a_change_of_members() -> None:
    desk = Desk()
    ids = desk.started(2)
    plan_id = desk.plan.id
    desk.direction = replace(desk.direction, until=40)  # round 5 of 8 samples
    desk.turn()
    assert desk.plan.id == plan_id
    desk.direction = replace(desk.direction, until=48)
    desk.turn()
    stand(desk, *ids)
    desk.turn()
    desk.direction = replace(desk.direction, num_workers=1)
    desk.turn()
    assert (desk.plan.num_members, desk.plan.until) == (1, 48)


def test_who_stands_at_a_line_for_long_trains_on_and_its_owner_is_told_once() -> None:
    desk = Desk()
    ids = desk.started(2)
    desk.direction = replace(desk.direction, until=38)
    desk.say(ids[0], Phase.COMPUTE, cursor=32, round=4)
    desk.say(ids[1], Phase.COMPUTE, cursor=32, round=4)
    desk.turn()
    assert desk.plan.until == 38
    stand(desk, *ids, age_s=desk.state.settings.line_s - 1)
    desk.turn()
    assert desk.plan.until == 38
    stand(desk, *ids, age_s=desk.state.settings.line_s + 1)
    desk.turn()
    [row] = desk.notes()
    assert (desk.plan.until, row.kind, row.actor) == (None, TimelineKind.LIMIT, "controller")
    assert "trains on" in row.reason
    desk.train(*ids, round=6)
    plan_id = desk.plan.id
    desk.turn()
    desk.turn()
    assert desk.plan.id == plan_id
