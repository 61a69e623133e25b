"""What polls see and hand over, without a training thread: terms, plans, halts, records, checkpoints."""

from __future__ import annotations

import threading

import pytest

from tests.control.desk import build_info
from workers.errors import Failure, Reason, StaleTermError, failure_of
from workers.lr import Decay, LrPlan, LrRule
from workers.plan import Cause, FreshSource, Member, Plan, PlanId, Switch, TimelineKind
from workers.status import Acknowledged, CheckpointInfo, Phase, RoundRecord, StopCause, StopReport, WorkerStatus
from workers.training.gauges import Gauges
from workers.training.mailbox import GroupLeftError, Mailbox, Position
from workers.training.records import MAX_PER_ANSWER, RecordBuffer


def plan(n: int, *workers: str, switch: Switch = Switch.AGREED, generation: int = 1) -> Plan:
    return Plan(
        id=PlanId(1, n),
        switch=switch,
        generation=generation,
        lineage=1,
        source=FreshSource(),
        members=tuple(Member(worker_id=w, rank=r) for r, w in enumerate(workers)),
        global_batch=8,
        lr=LrPlan(lr=1.0, base_batch=8, rule=LrRule.NONE, decay=Decay.CONSTANT),
        cause=Cause(kind=TimelineKind.START, actor="test", reason=""),
    )


def record(round: int, lineage: int = 1, **values: float) -> RoundRecord:
    return RoundRecord(
        lineage=lineage,
        round=round,
        generation=1,
        plan_id=PlanId(1, 1),
        cursor=round,
        samples=1,
        time=0.0,
        values=values,
    )


def look(mailbox: Mailbox, acked: Acknowledged | None = None, *, wants_records: bool = True) -> WorkerStatus:
    return mailbox.status(acked or Acknowledged(), (), wants_records=wants_records)


def test_a_lower_term_is_refused() -> None:
    mailbox = Mailbox("1.0")
    mailbox.hear(3)
    mailbox.hear(3)
    with pytest.raises(StaleTermError):
        mailbox.hear(2)
    assert look(mailbox).term == 3


def test_who_fails_while_a_status_is_taken_is_not_shown_to_train_on() -> None:
    mailbox = Mailbox("1.0")
    mailbox.enter(plan(1, "1.0"))
    mailbox.join(1, lambda: None)

    def fails() -> list[CheckpointInfo]:
        mailbox.failed(Failure(reason=Reason.USER_ERROR, type="ReplicaError", message="another state"))
        return []

    mailbox.watch_checkpoints(fails, tuple)
    status = look(mailbox)
    assert (status.phase, status.generation) == (Phase.FAILED, None)


def test_every_answer_has_its_number_and_shows_what_was_told() -> None:
    mailbox = Mailbox("1.0")
    mailbox.moved(Position(lineage=2, round=7, cursor=56, is_finished=True))
    mailbox.gauge(Gauges(micro_size=4, memory_bytes=99))
    mailbox.set_phase(Phase.EVAL)
    first, second = look(mailbox), look(mailbox)
    assert (first.seq, second.seq) == (1, 2)
    assert (first.lineage, first.round, first.cursor, first.is_finished) == (2, 7, 56, True)
    assert (first.micro_size, first.memory_bytes, first.phase) == (4, 99, Phase.EVAL)
    assert first.phase_age_s >= 0


def test_coming_to_rest_is_told_each_time_once_it_can_be_seen() -> None:
    seen: list[Phase] = []
    mailbox = Mailbox("1.0", lambda: seen.append(look(mailbox).phase))
    mailbox.built(build_info())
    mailbox.set_phase(Phase.COMPUTE)
    mailbox.rest(Phase.DONE)
    mailbox.stop(should_save=False)
    with pytest.raises(GroupLeftError):
        mailbox.stand()
    mailbox.failed(failure_of(ValueError("no")))
    assert seen == [Phase.READY, Phase.DONE, Phase.HELD, Phase.FAILED]


def test_an_agreed_plan_is_in_force_once_all_counted_it() -> None:
    mailbox = Mailbox("1.0")
    mailbox.enter(plan(1, "1.0", "1.1"))
    assert mailbox.count() == 0
    mailbox.offer(plan(2, "1.0"))
    assert look(mailbox).pending == plan(2, "1.0")
    assert mailbox.count() == 1
    mailbox.settle(1)
    assert mailbox.plan.id.n == 1
    assert mailbox.count() == 1
    mailbox.settle(2)
    assert mailbox.plan.id.n == 2
    assert look(mailbox).pending is None


def test_a_worker_in_no_group_is_given_the_plan_that_it_may_enter() -> None:
    mailbox = Mailbox("1.0")
    mailbox.offer(plan(1, "1.1"))
    mailbox.offer(plan(2, "1.0"))
    assert mailbox.wait_for_plan(only_now=False) == plan(2, "1.0")
    now = plan(3, "1.0", switch=Switch.NOW)
    waits = threading.Thread(target=lambda: found.append(mailbox.wait_for_plan(only_now=True)))
    found: list[Plan | None] = []
    waits.start()
    mailbox.offer(now)
    waits.join(10)
    assert found == [now]


def test_a_stop_ends_every_wait_and_every_round() -> None:
    mailbox = Mailbox("1.0")
    mailbox.stop(should_save=True)
    assert mailbox.wait_for_plan(only_now=False) is None
    assert mailbox.should_save
    with pytest.raises(GroupLeftError):
        mailbox.check()


def test_a_halt_breaks_the_group_of_the_plan_in_force_and_bars_the_way_back() -> None:
    mailbox, left = Mailbox("1.0"), []
    mailbox.enter(plan(1, "1.0", "1.1"))
    mailbox.join(1, lambda: left.append(1))
    assert look(mailbox).generation == 1
    mailbox.halt(PlanId(1, 0))
    assert left == []
    mailbox.check()
    mailbox.halt(PlanId(1, 2))
    assert left == [1]
    assert mailbox.stop_cause is StopCause.ABORTED
    with pytest.raises(GroupLeftError):
        mailbox.check()
    mailbox.rest(Phase.STOPPED, StopReport(generation=1, cause=StopCause.ABORTED))
    seen = look(mailbox)
    assert (seen.generation, seen.halted, seen.phase) == (None, PlanId(1, 2), Phase.STOPPED)
    with pytest.raises(GroupLeftError):
        mailbox.enter(plan(2, "1.0", switch=Switch.NOW))


def test_a_halt_between_entering_and_joining_keeps_the_worker_out() -> None:
    mailbox, left = Mailbox("1.0"), []
    mailbox.enter(plan(1, "1.0", "1.1"))
    mailbox.halt(PlanId(1, 1))
    with pytest.raises(GroupLeftError):
        mailbox.join(1, lambda: left.append(1))
    assert look(mailbox).generation is None
    assert left == []


def test_records_are_kept_until_the_store_has_them() -> None:
    mailbox = Mailbox("1.0")
    for round in range(1, 5):
        mailbox.publish(record(round))
    assert [r.round for r in look(mailbox).records] == [1, 2, 3, 4]
    assert look(mailbox, wants_records=False).records == ()
    assert [r.round for r in look(mailbox, Acknowledged(rounds=(1, 2))).records] == [3, 4]
    assert [r.round for r in look(mailbox).records] == [3, 4]


def checkpoint(path: str, *, is_final: bool = False) -> CheckpointInfo:
    return CheckpointInfo(
        path=path,
        attempt=1,
        lineage=1,
        generation=1,
        round=1,
        step=1,
        cursor=1,
        size_bytes=1,
        metric=None,
        is_final=is_final,
        created_at=0.0,
    )


def test_checkpoints_are_told_until_they_are_registered() -> None:
    mailbox = Mailbox("1.0")
    info = checkpoint("a")
    waiting = [[info], [], [], []]
    mailbox.watch_checkpoints(lambda: waiting.pop(0), tuple)
    assert look(mailbox).checkpoints == (info,)
    assert look(mailbox).checkpoints == (info,)
    assert look(mailbox, Acknowledged(checkpoints=frozenset({"a"}))).checkpoints == ()
    assert look(mailbox).checkpoints == ()


def test_the_last_checkpoint_is_told_for_as_long_as_its_worker_lives() -> None:
    mailbox = Mailbox("1.1")
    last = checkpoint("b", is_final=True)
    waiting = [[last], []]
    mailbox.watch_checkpoints(lambda: waiting.pop(0), tuple)
    assert look(mailbox, Acknowledged(checkpoints=frozenset({"b"}))).checkpoints == (last,)
    assert look(mailbox, Acknowledged(checkpoints=frozenset({"b"}))).checkpoints == (last,)


def test_a_failure_is_told_and_leaves_no_group() -> None:
    mailbox = Mailbox("1.0")
    mailbox.failed(Failure(reason=Reason.DIVERGED, type="DivergedError", message="nan"))
    seen = look(mailbox)
    assert (seen.phase, seen.generation) == (Phase.FAILED, None)
    assert seen.failure is not None
    assert mailbox.has_failed


def test_a_record_of_the_same_round_replaces_the_older() -> None:
    buffer = RecordBuffer()
    buffer.keep(record(1, loss=1.0))
    buffer.keep(record(1, loss=2.0))
    assert [r.values["loss"] for r in buffer.oldest()] == [2.0]


def test_records_of_another_member_are_told_in_their_order() -> None:
    buffer = RecordBuffer()
    buffer.keep(record(3, loss=3.0))
    buffer.merge([record(1, loss=1.0), record(2, loss=2.0), record(3, loss=3.5)])
    buffer.keep(record(4, loss=4.0))
    assert [r.values["loss"] for r in buffer.all()] == [1.0, 2.0, 3.5, 4.0]
    buffer.forget((1, 2))
    assert [r.round for r in buffer.all()] == [3, 4]


def test_records_that_nobody_fetches_are_thinned_in_their_older_half() -> None:
    buffer = RecordBuffer(max_records=8)
    thinned = [buffer.keep(record(round)) for round in range(1, 10)]
    assert thinned == [0] * 8 + [2]
    assert [r.round for r in buffer.oldest()] == [1, 3, 5, 6, 7, 8, 9]


def test_one_answer_holds_a_bounded_number_of_records_oldest_first() -> None:
    buffer = RecordBuffer()
    for round in range(1, MAX_PER_ANSWER + 100):
        buffer.keep(record(round))
    assert [r.round for r in buffer.oldest()] == list(range(1, MAX_PER_ANSWER + 1))
    buffer.forget((1, MAX_PER_ANSWER))
    assert len(buffer) == 99
