"""Growth that is asked for, granted, judged and given back, as the controller's turns carry it out."""

from __future__ import annotations

from dataclasses import replace

from tests.control.desk import Desk
from workers.control.snapshot import Progress, fold
from workers.control.telemetry import Pending
from workers.plan import TimelineKind
from workers.status import (
    Phase,
    RoundRecord,
    TimelineRow,
)


def step(desk: Desk, ids: list[str], round: int, step_s: float) -> None:
    """One more round, told by the first worker."""
    desk.train(*ids, round=round)
    record = RoundRecord(
        lineage=1,
        round=round,
        generation=desk.plan.generation,
        plan_id=desk.plan.id,
        cursor=round * 8,
        samples=8,
        time=1e9 + desk.now,
        values={"step_s": step_s, "workers": float(len(ids))},
    )
    desk.statuses[ids[0]] = replace(desk.statuses[ids[0]], records=(record,))
    desk.turn(after_s=2.0)


def ask_of(desk: Desk) -> int:
    return fold(desk.state, desk.direction, Pending(), Progress(), None).num_asked


def test_a_job_asks_for_room_grows_by_what_it_is_granted_and_tells_what_that_brought() -> None:
    desk = Desk(high=8)
    ids = desk.started(2)
    desk.direction = replace(desk.direction, num_offered=4)
    for round in range(6, 20):
        step(desk, ids, round, step_s=10.0)
    assert (ask_of(desk), desk.plan.num_members) == (4, 2)
    desk.direction = replace(desk.direction, num_workers=4)
    desk.turn()
    for i in ("1.3", "1.4"):
        desk.say(i, Phase.READY)
    desk.turn()
    assert (desk.plan.num_members, desk.plan.cause.actor) == (4, "scaling")
    assert [row.after["expected_gain"] for row in desk.notes()] == [2.0]
    ids += ["1.3", "1.4"]
    told: list[TimelineRow] = []
    for round in range(20, 40):
        step(desk, ids, round, step_s=9.9)
        told += [row for row in desk.notes() if row.kind is TimelineKind.PROBATION]
    assert [(r.before["workers"], r.after["workers"], r.after["is_kept"]) for r in told] == [(2, 4, False)]
    assert ask_of(desk) == 2
    desk.direction = replace(desk.direction, num_workers=2)
    desk.turn()
    assert (desk.plan.num_members, desk.plan.cause.actor) == (2, "scaling")


def test_newcomers_that_come_one_by_one_are_each_told_with_what_they_alone_shall_bring() -> None:
    desk = Desk(high=8)
    ids = desk.started(2)
    desk.direction = replace(desk.direction, num_offered=4)
    for round in range(6, 20):
        step(desk, ids, round, step_s=10.0)
    desk.direction = replace(desk.direction, num_workers=4)
    desk.turn()
    rows: list[TimelineRow] = []
    for i in ("1.3", "1.4"):
        desk.say(i, Phase.READY)
        desk.turn()
        rows += desk.notes()
        ids.append(i)
        step(desk, ids, 20 + len(ids), step_s=10.0)
        step(desk, ids, 30 + len(ids), step_s=10.0)
    assert [(row.before["workers"], row.after["workers"], row.after["expected_gain"]) for row in rows] == [
        (2, 3, 1.5),
        (3, 4, 1.333),
    ]


def test_what_others_need_is_given_back_at_once_also_on_trial() -> None:
    desk = Desk(high=8)
    ids = desk.started(4)
    desk.direction = replace(desk.direction, num_offered=8)
    for round in range(6, 20):
        step(desk, ids, round, step_s=10.0)
    assert ask_of(desk) == 8
    desk.direction = replace(desk.direction, num_workers=1, num_offered=1, actor="service", reason="made room")
    desk.turn()
    assert desk.plan.num_members == 1
    assert (desk.plan.cause.actor, desk.plan.cause.reason) == ("service", "made room")
    desk.direction = replace(desk.direction, num_offered=4)
    desk.turn()
    assert ask_of(desk) == 1


def test_a_pinned_size_is_never_weighed() -> None:
    desk = Desk(high=8)
    ids = desk.started(4)
    desk.direction = replace(desk.direction, num_offered=8)
    for round in range(6, 20):
        step(desk, ids, round, step_s=10.0)
    assert ask_of(desk) == 8
    desk.direction = replace(desk.direction, num_workers=6, num_offered=0, actor="user", reason="hurry")
    desk.turn()
    for i in ("1.5", "1.6"):
        desk.say(i, Phase.READY)
    desk.turn()
    assert (desk.plan.num_members, desk.plan.cause.actor, ask_of(desk)) == (6, "user", 6)
