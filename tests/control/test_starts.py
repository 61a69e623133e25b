"""Workers that never become ready: told, tried again later and later, not for ever, and no harm to the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.control.desk import FAILURE, Desk, checkpoint
from workers.control import starts
from workers.control.decisions import KillWorker, StartWorker, StopWorker, phase_bounds_s
from workers.errors import Reason
from workers.plan import TimelineKind
from workers.status import Outcome, Phase, RunPhase, StopCause, TimelineRow

HOUR_S = 3600


def fail(desk: Desk, worker_id: str) -> list[TimelineRow]:
    """Its code cannot be built, and it is let go; what is told of it."""
    desk.say(worker_id, Phase.FAILED, build=None, failure=replace(FAILURE, round=None))
    desk.turn()
    assert StopWorker(worker_id) in desk.actions
    told = desk.notes()
    desk.turn(lost={worker_id: "it ended"})
    return told


def newcomer(desk: Desk, within_s: int) -> str | None:
    """The next worker that is started while the others train on, if one is within that time."""
    for _ in range(within_s):
        if found := begun(desk):
            return found[0]
        desk.turn(after_s=1.0)
    return None


def begun(desk: Desk) -> list[str]:
    return [action.worker_id for action in desk.actions if isinstance(action, StartWorker)]


def growing() -> Desk:
    desk = Desk(low=1, high=3)
    desk.started(1)
    desk.direction = replace(desk.direction, num_workers=2)
    desk.turn()
    return desk


def test_newcomers_that_fail_are_told_and_tried_again_much_later() -> None:
    desk = growing()
    told = []
    for _ in range(starts.PATIENCE):
        worker = newcomer(desk, 10)
        assert worker is not None
        told += fail(desk, worker)
    assert [row.kind for row in told] == [TimelineKind.FAILURE] * starts.PATIENCE
    assert "the next is tried in 60 s" in told[-1].reason
    assert newcomer(desk, 50) is None
    assert newcomer(desk, 20) is not None
    assert desk.state.phase is RunPhase.RUNNING


def test_another_wish_is_tried_at_once() -> None:
    desk = growing()
    for _ in range(starts.PATIENCE):
        fail(desk, str(newcomer(desk, 10)))
    desk.direction = replace(desk.direction, num_workers=3)
    assert newcomer(desk, 5) is not None


def test_a_newcomer_that_trains_ends_the_count() -> None:
    desk = growing()
    fail(desk, str(newcomer(desk, 10)))
    second = str(newcomer(desk, 10))
    desk.say(second, Phase.READY)
    desk.turn()
    desk.train("1.1", second, round=6)
    desk.turn()
    desk.turn()
    assert desk.state.num_start_failures == 0


def test_workers_that_die_before_a_word_beside_those_that_train_are_not_started_without_end() -> None:
    desk = growing()
    num_started = 0
    for _ in range(HOUR_S):
        found = begun(desk)
        num_started += len(found)
        desk.turn(after_s=1.0, lost=dict.fromkeys(found, "its process died"))
    assert starts.PATIENCE < num_started < 12
    assert desk.state.phase is RunPhase.RUNNING


def test_a_job_whose_code_can_no_longer_be_built_fails_with_that_after_all_workers_are_lost() -> None:
    desk = Desk()
    (worker,) = desk.started(1)
    desk.latest = checkpoint(5)
    desk.turn(lost={worker: "its node died"})
    for _ in range(starts.MAX_TRIES):
        fail(desk, str(newcomer(desk, 60)))
    desk.turn()
    desk.turn()
    assert desk.state.outcome is Outcome.FAILED
    assert desk.state.reason is Reason.USER_ERROR
    assert "bad sample" in desk.state.detail


@pytest.mark.parametrize(
    ("why", "reason", "told"),
    [
        ("its process was ended because its node ran out of memory", Reason.OUT_OF_MEMORY, "before it was ready)"),
        (
            "its process 7 died",
            Reason.USER_ERROR,
            "before it was ready, while workers.recipes.digits:build was imported",
        ),
    ],
)
def test_a_start_in_which_every_process_dies_ends_with_why_they_died(why: str, reason: Reason, told: str) -> None:
    desk = Desk(want=1)
    for _ in range(HOUR_S):
        desk.turn(after_s=1.0, lost=dict.fromkeys(begun(desk), why))
    assert desk.state.outcome is Outcome.FAILED
    assert desk.state.reason is reason
    assert f"{why} {told}" in desk.state.detail


def test_a_job_that_never_gets_further_than_where_all_its_workers_die_fails() -> None:
    desk = Desk(want=1)
    (worker,) = desk.started(1)
    desk.latest = checkpoint(4)
    for _ in range(20):
        desk.turn(lost={worker: "its process died"})
        if desk.state.outcome is not None:
            break
        worker = str(newcomer(desk, 60))
        desk.say(worker, Phase.READY)
        desk.turn()
        desk.train(worker, round=5)
        desk.turn()
        desk.turn()
    assert desk.state.outcome is Outcome.FAILED
    assert "without getting further" in desk.state.detail


def hang(desk: Desk, *worker_ids: str, phase: Phase = Phase.BUILD) -> list[TimelineRow]:
    """They outlast the time for a start, and are killed; what is told of it."""
    for worker_id in worker_ids:
        desk.say(worker_id, phase, build=None, phase_age_s=1801.0)
    desk.turn()
    told = desk.notes()
    assert {action.worker_id for action in desk.actions if isinstance(action, KillWorker)} == set(worker_ids)
    desk.turn(lost=dict.fromkeys(worker_ids, "killed"))
    return told


def test_a_start_that_hangs_is_told_while_it_does_and_tried_once_more() -> None:
    desk = Desk(want=2)
    desk.turn()
    desk.turn()
    for age_s, told in ((30.0, ""), (725.0, "worker 1.1 builds its task for 12 min by now, and has 30 min")):
        desk.say("1.1", Phase.BUILD, build=None, phase_age_s=age_s)
        desk.turn()
        assert told in desk.state.detail
    assert "build_s" in desk.state.detail
    rows = hang(desk, "1.1", "1.2")
    assert [(row.kind, row.key) for row in rows] == [(TimelineKind.FAILURE, "start/1.1")]
    assert "in phase build for 1801 s (bound 1800 s, by the setting build_s)" in rows[0].reason
    assert desk.state.ending is None
    second = str(newcomer(desk, 10))
    assert "1 start of a worker failed: stalled" in desk.state.detail
    hang(desk, second)
    desk.turn()
    desk.turn(lost={"1.4": "ended"})
    desk.turn()
    assert (desk.state.outcome, desk.state.reason) == (Outcome.FAILED, Reason.STALLED)


def test_a_newcomer_whose_build_hangs_is_no_failure_of_the_code_that_trains() -> None:
    desk = growing()
    for _ in range(6):
        worker = newcomer(desk, HOUR_S)
        assert worker is not None
        hang(desk, worker)
    assert (desk.state.failures.num, desk.state.ending, desk.state.phase) == (0, None, RunPhase.RUNNING)


def test_installing_has_a_bound_of_its_own_with_the_time_for_another_worker_that_installs() -> None:
    desk = Desk(want=1)
    desk.turn()
    desk.turn()
    desk.say("1.1", Phase.INSTALL, build=None, phase_age_s=3000.0)
    desk.turn()
    assert "worker 1.1 installs dependencies for 50 min by now" in desk.state.detail
    desk.say("1.1", Phase.INSTALL, build=None, phase_age_s=3700.0)
    desk.turn()
    assert desk.actions[-1] == KillWorker(
        "1.1", "stalled: in phase install for 3700 s (bound 3660 s, by the setting install_s)"
    )


def test_who_waits_for_others_in_an_exchange_has_as_long_as_they_have() -> None:
    bounds = phase_bounds_s(data_s=40.0, step_s=7200.0)
    assert bounds[Phase.DATA] == 40.0
    assert bounds[Phase.EXCHANGE] == bounds[Phase.DATA] + bounds[Phase.COMPUTE] == 7240.0


def test_a_newcomer_whose_task_differs_does_not_end_a_job_that_trains() -> None:
    desk = Desk(max_failures=3)
    ids = desk.started(1)
    desk.stop(ids[0], StopCause.USER, replace(FAILURE, round=None))
    desk.turn()
    assert desk.state.ending is None
    assert desk.plan.members[0].worker_id == ids[0]


def test_a_newcomer_that_cannot_start_does_not_harm_the_others() -> None:
    desk = Desk()
    desk.started(1)
    desk.direction = replace(desk.direction, num_workers=2)
    desk.turn()
    assert desk.of(StartWorker) == [StartWorker("1.2")]
    desk.say("1.2", Phase.FAILED, failure=FAILURE)
    desk.turn()
    assert desk.state.ending is None
    assert desk.plan.worker_ids == ("1.1",)
    assert desk.state.phase is RunPhase.RUNNING


def test_a_newcomer_without_enough_memory_does_not_end_the_job() -> None:
    desk = Desk()
    desk.started(1)
    desk.direction = replace(desk.direction, num_workers=2)
    desk.turn()
    desk.say("1.2", Phase.FAILED, failure=replace(FAILURE, reason=Reason.OUT_OF_MEMORY))
    desk.turn()
    assert desk.state.ending is None
    assert desk.of(StopWorker) == [StopWorker("1.2")]
