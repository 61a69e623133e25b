from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from service.timeline_words import sentence
from workers.control import telemetry as module
from workers.control.telemetry import Pending, Telemetry
from workers.lr import LrPlan
from workers.measures import COMPARED, LoaderChange, MicroChange, compared
from workers.plan import Cause, MemberSource, Plan, PlanId, Switch, TimelineKind
from workers.status import (
    Acknowledged,
    CheckpointInfo,
    Cut,
    FailedSave,
    LogChunk,
    Phase,
    RoundRecord,
    TimelineRow,
    WorkerStatus,
)

G = 10


def record(round: int, *, generation: int = 1, n: int = 1, time: float | None = None, lineage: int = 1) -> RoundRecord:
    return RoundRecord(
        lineage=lineage,
        round=round,
        generation=generation,
        plan_id=PlanId(1, n),
        cursor=round * G,
        samples=G,
        time=float(round) if time is None else time,
        values={"loss": 1.0, "step_s": 1.0},
    )


def status(*records: RoundRecord, worker_id: str = "1.1", **more: object) -> WorkerStatus:
    first = WorkerStatus(worker_id=worker_id, seq=1, term=1, phase=Phase.COMPUTE, phase_age_s=0.0, records=records)
    return replace(first, **more)  # type: ignore[arg-type]  # fields by name


def row(n: int, kind: TimelineKind = TimelineKind.WORKER_LOST) -> TimelineRow:
    return TimelineRow(key=f"plan/1/{n}", kind=kind, time=0.0, step=0, actor="controller", reason="a worker was lost")


def plan(generation: int, source: MemberSource) -> Plan:
    return Plan(
        id=PlanId(1, generation),
        switch=Switch.NOW,
        generation=generation,
        lineage=1,
        source=source,
        members=(),
        global_batch=G,
        lr=LrPlan(lr=1.0, base_batch=G),
        cause=Cause(kind=TimelineKind.WORKER_LOST, actor="controller", reason=""),
    )


def chunk(offset: int, data: bytes, rank: int | None = 0, worker_id: str = "1.1") -> LogChunk:
    return LogChunk(worker_id=worker_id, offset=offset, rank=rank, time=0.0, data=data)


def info(path: str) -> CheckpointInfo:
    return CheckpointInfo(
        path=path,
        attempt=1,
        lineage=1,
        generation=1,
        round=1,
        step=1,
        cursor=G,
        size_bytes=1,
        metric=None,
        is_final=False,
        created_at=0.0,
    )


def told(buffers: Telemetry) -> list[tuple[int, int]]:
    return [(r.round, r.generation) for r in buffers.pending().records]


def is_drained(buffers: Telemetry) -> bool:
    left = buffers.pending()
    assert left.is_all
    return not (left.records or left.logs or left.checkpoints or left.timeline)


def test_records_are_kept_until_the_store_has_them() -> None:
    buffers = Telemetry(G, Acknowledged())
    buffers.take(status(record(1), record(2)))
    buffers.take(status(record(1), record(2), record(3)))
    assert told(buffers) == [(1, 1), (2, 1), (3, 1)]
    buffers.acknowledge(Acknowledged(answer=buffers.number, rounds=(1, 2)))
    assert told(buffers) == [(3, 1)]
    buffers.take(status(record(1), record(2), record(3)))
    assert told(buffers) == [(3, 1)]
    assert not is_drained(buffers)
    buffers.acknowledge(Acknowledged(answer=buffers.number, rounds=(1, 3)))
    assert is_drained(buffers)


def test_of_two_records_of_one_round_the_higher_generation_stays() -> None:
    buffers = Telemetry(G, Acknowledged())
    buffers.take(status(record(1, generation=2)))
    buffers.take(status(record(1, generation=1)))
    assert told(buffers) == [(1, 2)]


def test_a_round_that_was_stored_and_then_redone_is_told_again_once() -> None:
    buffers = Telemetry(G, Acknowledged())
    buffers.take(status(record(1), record(2)))
    buffers.pending()
    buffers.acknowledge(Acknowledged(answer=buffers.number, rounds=(1, 2)))
    buffers.take(status(record(2, generation=2)))
    assert told(buffers) == [(2, 2)]
    buffers.acknowledge(Acknowledged(answer=buffers.number, rounds=(1, 2)))
    buffers.take(status(record(2, generation=2)))
    assert told(buffers) == []


def test_no_worker_forgets_a_round_that_it_has_not_committed() -> None:
    buffers = Telemetry(G, Acknowledged(rounds=(1, 7)))
    behind = status(lineage=1, round=5)
    assert buffers.acked_for("1.1", behind).rounds == (1, 5)
    assert buffers.acked_for("1.1", status(lineage=1, round=9)).rounds == (1, 7)


def test_no_worker_forgets_a_redone_round_before_it_was_told() -> None:
    buffers = Telemetry(G, Acknowledged(rounds=(1, 7)))
    buffers.formed(plan(2, MemberSource("1.1", 6)))
    redone = status(lineage=1, round=8)
    assert buffers.acked_for("1.1", redone).rounds == (1, 6)
    buffers.take(status(record(7, generation=2)))
    assert buffers.acked_for("1.1", redone).rounds == (1, 7)


def test_a_full_buffer_takes_no_more_and_asks_for_no_more(monkeypatch) -> None:  # type: ignore[no-untyped-def]  # pytest
    monkeypatch.setattr(module, "MAX_RECORDS", 3)
    monkeypatch.setattr(module, "MAX_SENT_RECORDS", 2)
    buffers = Telemetry(G, Acknowledged())
    buffers.take(status(*(record(n) for n in range(1, 8))))
    assert not buffers.has_room
    assert told(buffers) == [(1, 1), (2, 1)]
    assert not buffers.pending().is_all
    buffers.acknowledge(Acknowledged(answer=buffers.number, rounds=(1, 2)))
    assert buffers.has_room
    buffers.take(status(*(record(n) for n in range(3, 8))))
    assert told(buffers) == [(3, 1), (4, 1)]


def test_log_pieces_adjoin_and_are_told_from_what_is_stored_on() -> None:
    buffers = Telemetry(G, Acknowledged(log_offsets={"1.1": 4}))
    assert buffers.acked_for("1.1", None).log_offsets == {"1.1": 4}
    buffers.take(status(logs=(chunk(4, b"one\ntw"),)))
    assert buffers.acked_for("1.1", None).log_offsets == {"1.1": 10}
    buffers.take(status(logs=(chunk(4, b"one\ntwo\nth"),)))
    assert buffers.pending().logs == (chunk(4, b"one\ntwo\nth"),)
    buffers.acknowledge(Acknowledged(answer=buffers.number, log_offsets={"1.1": 12}))
    assert buffers.pending().logs == (chunk(12, b"th"),)
    buffers.take_log(chunk(20, b"late"))
    assert buffers.pending().logs == (chunk(12, b"th"), chunk(20, b"late"))
    buffers.acknowledge(Acknowledged(answer=buffers.number, log_offsets={"1.1": 24}))
    assert is_drained(buffers)


def test_logs_are_sent_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SENT_LOG_BYTES", 5)
    monkeypatch.setattr(module, "MAX_LOG_BYTES", 8)
    buffers = Telemetry(G, Acknowledged())
    buffers.take(status(logs=(chunk(0, b"12345678"),)))
    buffers.take(status(logs=(chunk(8, b"9"),)))
    assert buffers.pending().logs == (chunk(0, b"12345"),)
    assert not buffers.pending().is_all
    buffers.acknowledge(Acknowledged(answer=buffers.number, log_offsets={"1.1": 5}))
    assert buffers.acked_for("1.1", None).log_offsets == {"1.1": 8}
    assert buffers.pending().logs == (chunk(5, b"678"),)
    assert buffers.pending().is_all


def test_the_last_lines_of_one_that_is_gone_are_kept_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOG_BYTES", 4)
    buffers, last = Telemetry(G, Acknowledged()), chunk(0, b"why it failed", worker_id="1.2")
    buffers.take_log(chunk(0, b"1234"))
    buffers.take_log(last)
    assert buffers.log_end("1.2") == 0
    buffers.take_log(last, is_last=True)
    assert buffers.pending().logs == (chunk(0, b"1234"), last)


def test_a_save_that_failed_is_told_once_however_often_it_is_polled() -> None:
    buffers = Telemetry(8, Acknowledged())
    failed = FailedSave(path="a", step=4, time=5.0, message="the checkpoint of step 4 cannot be written: full")
    buffers.take(status(failed_saves=(failed,)))
    [row] = buffers.pending().timeline
    assert (row.kind, row.step, row.time, row.reason) == ("checkpoint", 4, 5.0, failed.message)
    assert sentence(asdict(row)) == "The checkpoint of step 4 cannot be written: full"
    buffers.acknowledge(Acknowledged(answer=buffers.number, timeline=frozenset({row.key})))
    buffers.take(status(failed_saves=(failed,)))
    assert buffers.pending().timeline == ()
    assert is_drained(buffers)


def test_checkpoints_are_kept_until_registered() -> None:
    buffers = Telemetry(G, Acknowledged())
    buffers.take(status(checkpoints=(info("a"), info("b"))))
    buffers.acknowledge(Acknowledged(answer=buffers.number, checkpoints=frozenset({"a"})))
    buffers.take(status(checkpoints=(info("a"), info("b"))))
    assert [c.path for c in buffers.pending().checkpoints] == ["b"]


def test_a_row_gets_its_price_from_the_records_around_the_change() -> None:
    buffers = Telemetry(G, Acknowledged())
    buffers.take(status(record(1), record(2), record(3)))
    buffers.note(row(2))
    assert buffers.pending().timeline[0].cost_s is None
    buffers.acknowledge(Acknowledged(answer=buffers.number, rounds=(1, 3), timeline=frozenset({"plan/1/2"})))
    assert buffers.pending().timeline == ()
    assert is_drained(buffers)
    buffers.take(status(record(4, generation=2, n=2, time=4.5)))
    (priced,) = buffers.pending().timeline
    assert (priced.cost_s, priced.steps_lost, priced.step) == (0.5, 0, 3)
    buffers.acknowledge(Acknowledged(answer=buffers.number, rounds=(1, 4), timeline=frozenset({"plan/1/2"})))
    assert is_drained(buffers)


def test_a_restore_tells_how_many_rounds_were_lost() -> None:
    buffers = Telemetry(G, Acknowledged())
    buffers.take(status(*(record(n) for n in range(1, 9))))
    buffers.note(row(2, TimelineKind.RESTORE))
    buffers.take(status(record(6, lineage=2, generation=2, n=2, time=20.0)))
    (priced,) = buffers.pending().timeline
    assert (priced.cost_s, priced.steps_lost, priced.step) == (11.0, 3, 5)
    assert sentence(asdict(priced)).endswith("took 11 s; at least 3 steps lost")


def test_an_attempt_tells_what_those_before_it_did_in_vain_once_and_by_its_first_beginning() -> None:
    before = Acknowledged(before=8)
    buffers = Telemetry(G, before)
    buffers.note(row(1, TimelineKind.RESTORE))
    buffers.note(row(2, TimelineKind.WORKER_JOINED))
    buffers.take(status(record(6, n=2, time=20.0), record(7, n=2, time=21.0)))
    told = buffers.pending().timeline
    assert [(r.cost_s, r.steps_lost, r.step) for r in told] == [(0.0, 3, 5), (0.0, 0, 5)]
    assert sentence(asdict(told[0])).endswith("; 3 steps lost")
    buffers = Telemetry(G, replace(before, unpriced=(row(1, TimelineKind.START),)))
    buffers.note(row(2, TimelineKind.RESTORE))
    buffers.take(status(record(1, n=2)))
    assert [r.steps_lost for r in buffers.pending().timeline] == [8, 0]
    taken_over = replace(row(1, TimelineKind.RESTORE), after={"lineage": 1, "donor": "job_other"})
    buffers = Telemetry(G, before)
    buffers.note(taken_over)
    buffers.take(status(record(6)))
    assert [r.steps_lost for r in buffers.pending().timeline] == [0]


def test_an_attempt_whose_predecessor_told_of_no_end_claims_to_know_only_the_least() -> None:
    for first, words in ((6, "; at least 3 steps lost"), (20, "; steps that nobody had told of by then are lost")):
        buffers = Telemetry(G, Acknowledged(before=8, is_before_least=True))
        buffers.note(row(1, TimelineKind.RESTORE))
        buffers.take(status(record(first)))
        assert sentence(asdict(buffers.pending().timeline[0])).endswith(words)


def test_rounds_whose_records_never_arrived_count_as_lost_too() -> None:
    buffers = Telemetry(G, Acknowledged())
    buffers.take(status(*(record(n) for n in range(1, 9)), lineage=1, round=9))
    buffers.note(row(2, TimelineKind.RESTORE))
    buffers.take(status(record(6, lineage=2, generation=2, n=2, time=20.0), lineage=2, round=6))
    assert [r.steps_lost for r in buffers.pending().timeline] == [4]


def test_the_plan_that_came_into_force_bears_the_cost_of_those_it_overtook() -> None:
    buffers = Telemetry(G, Acknowledged())
    buffers.take(status(record(1)))
    buffers.note(row(2))
    buffers.note(row(3))
    buffers.take(status(record(2, generation=3, n=3, time=10.0)))
    assert [r.cost_s for r in buffers.pending().timeline] == [0.0, 8.0]


def test_the_first_plan_of_an_attempt_costs_nothing() -> None:
    buffers = Telemetry(G, Acknowledged())
    buffers.note(row(1, TimelineKind.START))
    buffers.take(status(record(1)))
    assert [r.cost_s for r in buffers.pending().timeline] == [0.0]


def test_a_successor_prices_what_its_predecessor_left_open_by_the_last_commit_in_the_store() -> None:
    keys = frozenset({"plan/1/2", "plan/1/3"})
    left = Acknowledged(rounds=(1, 5), committed_at=5.0, timeline=keys, unpriced=(row(2), row(3)))
    buffers = Telemetry(G, left)
    assert buffers.pending().timeline == ()
    buffers.take(status(record(6, generation=2, n=3, time=9.0)))
    assert [(r.key, r.cost_s, r.step) for r in buffers.pending().timeline] == [
        ("plan/1/2", 0.0, 5),
        ("plan/1/3", 3.0, 5),
    ]
    buffers.acknowledge(Acknowledged(answer=buffers.number, rounds=(1, 6), timeline=keys))
    assert is_drained(buffers)


def test_a_successor_prices_its_own_plan_though_every_record_before_it_is_stored() -> None:
    buffers = Telemetry(G, Acknowledged(rounds=(1, 5), committed_at=5.0))
    buffers.note(row(2))
    buffers.take(status(record(5, generation=2, n=2, time=9.0)))
    assert [(r.cost_s, r.steps_lost) for r in buffers.pending().timeline] == [(3.0, 1)]


def test_nothing_pending_is_nothing() -> None:
    assert Telemetry(G, Acknowledged()).pending() == Pending()


def test_a_change_of_the_micro_batch_is_one_row_a_worker_with_its_reason_and_what_was_measured() -> None:
    telemetry = Telemetry(G, Acknowledged())
    chosen = MicroChange(
        n=1, before=None, after=8, reason="8 is the fastest", time=4.0, seconds={4: 2e-3, 8: 1e-3}, cost_s=0.5
    )
    halved = MicroChange(n=2, before=8, after=4, reason="out of memory at 8 samples; going on with 4", time=5.0)
    for worker_id in ("1.1", "1.2", "1.1"):
        telemetry.take(status(micro_changes=(chosen, halved), worker_id=worker_id, cursor=3 * G))
    rows = telemetry.pending().timeline
    assert [row.cost_s for row in rows] == [0.5, 0.0, 0.5, 0.0]
    assert [(r.kind, r.step, r.time, r.actor, r.before, r.after) for r in rows] == 2 * [
        (TimelineKind.BATCH, 3, 4.0, "micro_size", {}, {"micro_size": 8, "seconds_a_sample": {"4": 2e-3, "8": 1e-3}}),
        (TimelineKind.BATCH, 3, 5.0, "controller", {"micro_size": 8}, {"micro_size": 4}),
    ]
    assert [sentence(asdict(row)) for row in rows[2:]] == [
        f"Micro-batch 8: worker 1.2: {chosen.reason}; trying took 0.5 s more",
        f"Micro-batch 8 → 4: worker 1.2: {halved.reason}",
    ]
    telemetry.acknowledge(Acknowledged(answer=telemetry.number, timeline=frozenset(r.key for r in rows)))
    telemetry.take(status(micro_changes=(chosen, halved)))
    assert is_drained(telemetry)


def test_who_reads_samples_is_one_row_a_change_with_what_was_measured() -> None:
    telemetry = Telemetry(G, Acknowledged())
    took = compared("sample", [2e-3] * 4, [1e-3] * 4)
    change = LoaderChange(
        n=1, before="inline", after="2 loader processes", reason="it pays", time=4.0, compared=took, cost_s=0.2
    )
    stays = LoaderChange(n=2, before="2 loader processes", after="2 loader processes", reason="tried", time=5.0)
    for _ in range(2):
        telemetry.take(status(loader_changes=(change, stays), worker_id="1.1", cursor=3 * G))
    rows = telemetry.pending().timeline
    assert [(r.key, r.kind, r.step, r.actor) for r in rows] == [
        (f"loaders/1.1/{n}", TimelineKind.BATCH, 3, "loaders") for n in (1, 2)
    ]
    told = {"unit": "sample", "before_s": 2e-3, "after_s": 1e-3, "errors": (0.0, 0.0), "num_rounds": 8}
    assert [row.cost_s for row in rows] == [0.2, 0.0]
    assert [row.after.get(COMPARED) for row in rows] == [told, None]
    assert [sentence(asdict(row)) for row in rows] == [
        "Samples read inline → 2 loader processes: worker 1.1: it pays; trying took 0.2 s more",
        "Samples read by 2 loader processes: worker 1.1: tried",
    ]


def test_what_was_answered_and_not_stored_is_told_again() -> None:
    telemetry = Telemetry(G, Acknowledged())
    cut = Cut(what="logs", reason="too fast", time=5.0)
    telemetry.take(status(record(1), cuts=(cut,)))
    before = telemetry.pending()
    telemetry.acknowledge(Acknowledged())
    telemetry.take(status(record(1), cuts=(cut,)))
    assert telemetry.pending() == before
    telemetry.acknowledge(Acknowledged(answer=telemetry.number, rounds=(1, 1)))
    assert is_drained(telemetry)
    telemetry.take(status(record(1, generation=2)))
    amended = telemetry.pending()
    telemetry.acknowledge(Acknowledged(answer=telemetry.number - 1, rounds=(1, 1)))
    assert telemetry.pending() == amended
    assert [(r.key, r.generation) for r in amended.records] == [((1, 1), 2)]


def test_each_kind_of_cut_is_one_row_whoever_tells_it_and_however_often() -> None:
    telemetry = Telemetry(G, Acknowledged())
    cuts = (Cut(what="logs", reason="too fast", time=5.0), Cut(what="values", reason="too many", time=6.0))
    telemetry.take(status(cuts=cuts[:1], cursor=4 * G))
    telemetry.take(status(cuts=cuts, worker_id="1.2"))
    rows = telemetry.pending().timeline
    assert [(r.kind, r.key, r.step, r.reason) for r in rows] == [
        (TimelineKind.LIMIT, "limit/logs", 4, "too fast"),
        (TimelineKind.LIMIT, "limit/values", 0, "too many"),
    ]
    telemetry.acknowledge(
        Acknowledged(answer=telemetry.number, timeline=frozenset({"limit/logs"}))
    )  # the other's key is long forgotten
    telemetry.take(status(cuts=cuts))
    assert telemetry.pending().timeline == ()
    assert is_drained(telemetry)
    successor = Telemetry(G, Acknowledged(timeline=frozenset({"limit/logs"})))
    successor.take(status(cuts=cuts))
    assert [r.key for r in successor.pending().timeline] == ["limit/values"]
