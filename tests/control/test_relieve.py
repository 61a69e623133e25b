"""A worker that holds the others up whatever its part: another takes its place, if some node has room for one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.control.desk import SETTINGS
from tests.control.uneven_job import CostOf, UnevenJob
from workers.control.decisions import KillWorker, StartWorker, StopWorker, phase_bounds_s
from workers.control.relieve import MOST, PLACE_S
from workers.control.sharing import Relief
from workers.errors import Failure, Reason
from workers.plan import Switch, TimelineKind
from workers.status import AvoidedNode, Phase, StopCause

NO_ROOM = "it could not be started: no node has room for it now"


def fast(part: int) -> float:
    return 0.001 * part


def slow(part: int) -> float:
    return 2.0 + 0.001 * part


def begun(*costs: CostOf) -> UnevenJob:
    """A job up to the moment at which a stand-in is asked for."""
    job = UnevenJob(*costs)
    until_asked(job)
    return job


def until_asked(job: UnevenJob, most: int = 400) -> None:
    for _ in range(most):
        job.run(1)
        if job.desk.of(StartWorker):
            return
    pytest.fail(f"no stand-in was asked for within {most} rounds")


def come(job: UnevenJob, worker_id: str, node_id: str, cost: CostOf) -> None:
    """The stand-in is ready, and from the next round in the group."""
    job.node_ids[worker_id] = node_id
    job.desk.say(worker_id, Phase.READY, build=job.built(worker_id))
    leaver = job.desk.state.sharing.relief.slow
    job.desk.turn()
    job.rows += job.desk.notes()
    job.join(worker_id, cost)
    job.ids[job.ids.index(leaver)] = worker_id
    job.desk.stop(leaver, StopCause.REMOVED)


def test_a_stand_in_on_another_node_takes_the_place_once_it_is_ready() -> None:
    job = begun(fast, fast, slow)
    assert job.desk.of(StartWorker) == [StartWorker("1.4", frozenset({"n"}), must_fit=True)]
    num_plans = len(job.plans)
    job.run(2)
    assert len(job.plans) <= num_plans + 1  # other parts may be tried, other members are not
    assert job.desk.plan.worker_ids == ("1.1", "1.2", "1.3")
    come(job, "1.4", "m", fast)
    plan = job.desk.plan
    assert (plan.worker_ids, plan.switch) == (("1.1", "1.2", "1.4"), Switch.AGREED)
    assert [member.weight for member in plan.members] == [1.0, 1.0, 1.0]
    [row] = job.told(TimelineKind.WORKER_JOINED)
    assert (row.actor, row.reason) == (
        "shares",
        "worker 1.4 on node m takes the place of worker 1.3 on node n, which held the others up whatever its part",
    )
    job.run(2)
    assert job.desk.state.workers["1.3"].stopping_since_s is not None
    job.run(60)
    assert job.parts == pytest.approx((43, 43, 42), abs=1)


def test_who_shows_itself_slow_whatever_its_part_only_when_another_was_tried_is_relieved_at_once() -> None:
    job = UnevenJob(lambda part: 0.006 * part, lambda part: 2.0, run=3)
    until_asked(job, most=30)  # a line through one point had promised much of a small part
    assert job.parts == (64, 64)
    [tried] = job.told(TimelineKind.PROBATION)
    assert tried.after["is_kept"] is False
    [named] = [row for row in job.told(TimelineKind.LIMIT) if row.key.startswith("straggler/")]
    assert named.reason.startswith("worker 1.2 cannot be balanced away")
    assert job.desk.of(StartWorker) == [StartWorker("1.3", frozenset({"n"}), must_fit=True)]


def test_without_room_all_stays_which_is_told_once_and_tried_again_at_the_next_review() -> None:
    job = begun(fast, fast, slow)
    job.desk.turn(lost={"1.4": NO_ROOM})
    job.desk.turn(lost={"1.5": NO_ROOM})
    [row] = job.desk.notes()
    assert (row.kind, row.after) == (TimelineKind.LIMIT, {"worker_id": "1.3", "node_id": "n"})
    assert row.reason == f"worker 1.3 stays: no other could take its place ({NO_ROOM})"
    assert (job.desk.state.num_start_failures, job.desk.state.departed) == (0, {})
    asked_s = job.desk.now
    until_asked(job)
    assert job.desk.now - asked_s >= SETTINGS.review_s * 0.9
    for stand_in in ("1.6", "1.7"):
        job.desk.turn(lost={stand_in: NO_ROOM})
        assert job.desk.notes() == []


def test_where_one_cannot_be_relieved_the_next_one_that_is_slow_is_tried_at_once() -> None:
    job = begun(fast, slow, slow)
    named = [row for row in job.told(TimelineKind.LIMIT) if row.key.startswith("straggler/")]
    assert [row.after["worker_id"] for row in named] == ["1.2", "1.3"]
    for stand_in in ("1.4", "1.5"):
        job.desk.turn(lost={stand_in: NO_ROOM})
    assert [row.after["worker_id"] for row in job.desk.notes()] == ["1.2"]
    assert job.desk.of(StartWorker) == [StartWorker("1.6", frozenset({"n"}), must_fit=True)]
    assert job.desk.state.sharing.relief.slow == "1.3"


def test_where_no_other_node_has_room_a_stand_in_on_its_own_is_tried_once() -> None:
    job = begun(fast, fast, slow)
    job.desk.turn(lost={"1.4": NO_ROOM})
    assert job.desk.notes() == []
    assert job.desk.of(StartWorker) == [StartWorker("1.5", must_fit=True)]
    come(job, "1.5", "n", slow)
    assert job.desk.plan.worker_ids == ("1.1", "1.2", "1.5")
    until_asked(job)
    assert job.desk.of(StartWorker) == [StartWorker("1.6", frozenset({"n"}), must_fit=True)]
    job.desk.turn(lost={"1.6": NO_ROOM})
    [row] = job.desk.notes()
    assert row.reason == f"worker 1.5 stays: no other could take its place on another node ({NO_ROOM})"
    assert job.desk.of(StartWorker) == []


def test_one_that_cannot_be_made_ready_is_no_failure_of_the_job() -> None:
    job = begun(fast, fast, slow)
    failure = Failure(reason=Reason.USER_ERROR, type="FileNotFoundError", message="no /data here", worker_id="1.4")
    job.desk.say("1.4", Phase.FAILED, failure=failure)
    job.desk.turn()
    [row] = job.desk.notes()
    assert (row.kind, row.reason[-15:]) == (TimelineKind.LIMIT, "(no /data here)")
    assert job.desk.of(StopWorker) == [StopWorker("1.4")]
    job.desk.statuses.pop("1.4")
    job.desk.turn(lost={"1.4": "it ended"})
    state = job.desk.state
    assert (job.desk.notes(), state.num_start_failures, state.departed, state.failures.num) == ([], 0, {}, 0)
    for worker_id in ("1.5", "1.6"):
        until_asked(job)
        job.desk.say(worker_id, Phase.FAILED, failure=failure)
        job.desk.turn()
        job.desk.statuses.pop(worker_id)
        job.desk.turn(lost={worker_id: "it ended"})
    for _ in range(400):
        job.run(1)
        assert not job.desk.of(StartWorker)


def test_one_that_hangs_while_it_builds_is_no_failure_of_the_job() -> None:
    job = begun(fast, fast, slow)
    job.desk.say("1.4", Phase.BUILD, phase_age_s=phase_bounds_s()[Phase.BUILD] + 1.0)
    job.desk.turn()
    assert [action.worker_id for action in job.desk.of(KillWorker) if isinstance(action, KillWorker)] == ["1.4"]
    job.desk.statuses.pop("1.4")
    job.desk.turn(lost={"1.4": "its process was killed"})
    state = job.desk.state
    assert (state.num_start_failures, state.departed, state.failures.num) == (0, {}, 0)


def test_while_it_starts_parts_are_found_and_judged() -> None:
    job = begun(fast, fast, slow)
    before = len(job.told(TimelineKind.PROBATION))
    job.costs["1.1"] = lambda part: 0.1 * part
    job.desk.say("1.4", Phase.BUILD)
    job.run(60)
    assert len(job.told(TimelineKind.PROBATION)) > before
    assert job.desk.state.sharing.relief.stand_in == "1.4"


def test_one_that_was_promised_room_and_waits_for_it_all_the_same_is_taken_back() -> None:
    job = begun(fast, fast, slow)
    job.desk.turn(after_s=PLACE_S - 1.0)
    assert job.desk.of(StopWorker) == []
    job.desk.turn(after_s=2.0)
    assert job.desk.of(StopWorker) == [StopWorker("1.4")]
    [row] = job.desk.notes()
    assert "it had no place within 30 s" in row.reason


def test_a_group_that_shrinks_meanwhile_needs_no_stand_in() -> None:
    job = begun(fast, fast, slow)
    job.desk.direction = replace(job.desk.direction, num_workers=2)
    job.run(4)
    assert job.desk.plan.worker_ids == ("1.1", "1.2")
    assert job.desk.state.sharing.relief.stand_in == ""


def test_one_that_is_to_avoid_more_nodes_than_are_emptied_is_not_called_back_for_that() -> None:
    job = begun(fast, fast, slow)
    empty = AvoidedNode(node_id="z", actor="admin", reason="node z is drained")
    job.desk.direction = replace(job.desk.direction, avoid=(empty,))
    job.desk.turn()
    assert job.desk.of(StopWorker) == []


def test_who_is_slow_on_every_node_is_replaced_so_often_only() -> None:
    job = begun(fast, fast, slow)
    for n in range(MOST):
        [ask] = job.desk.of(StartWorker)
        assert isinstance(ask, StartWorker)
        assert ask.avoids == {"n", *[f"m{before}" for before in range(n)]}
        come(job, ask.worker_id, f"m{n}", slow)
        if n < MOST - 1:
            until_asked(job)
    job.run(400)
    assert len(job.told(TimelineKind.WORKER_JOINED)) == MOST


def test_as_many_are_relieved_as_are_slow_where_those_who_come_are_not() -> None:
    job = begun(fast, *[slow] * (MOST + 1))
    for n in range(MOST + 1):
        [ask] = job.desk.of(StartWorker)
        assert isinstance(ask, StartWorker)
        job.run(2)  # parts that were tried are taken back
        come(job, ask.worker_id, "m", fast)
        if n < MOST:
            until_asked(job)
    assert len(job.told(TimelineKind.WORKER_JOINED)) == MOST + 1


def test_who_came_in_vain_counts_whoever_else_is_slower() -> None:
    job = UnevenJob(fast, lambda part: 0.5 * slow(part), slow)
    sharing = replace(job.desk.state.sharing, relief=Relief(came=frozenset({"1.2"}), num_vain=MOST - 1))
    job.desk.state = replace(job.desk.state, sharing=sharing)
    for _ in range(100):
        job.run(1)
        assert not job.desk.of(StartWorker)
    assert [row.after["worker_id"] for row in job.told(TimelineKind.LIMIT)] == ["1.3", "1.2"]
    assert job.desk.state.sharing.relief == Relief(num_vain=MOST)


def test_one_that_is_refused_once_more_makes_the_next_look_come_no_sooner() -> None:
    job = begun(fast, slow, slow)
    sharing = job.desk.state.sharing
    sharing = replace(sharing, relief=replace(sharing.relief, told=frozenset({"1.2"})))
    job.desk.state = replace(job.desk.state, sharing=sharing)
    for stand_in in ("1.4", "1.5"):
        job.desk.turn(lost={stand_in: NO_ROOM})
    until_s = job.desk.now + 0.5 * SETTINGS.review_s
    while job.desk.now < until_s:
        assert not job.desk.of(StartWorker)
        job.run(1)
