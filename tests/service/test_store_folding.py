"""The store's contract with the reconciler: what a snapshot tells, folded into rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from service.api.requests import MAX_INT
from service.records import Transition
from service.states import JobState, Move, Verb, command
from service.store.opening import Store
from service.store.port import StaleRowError
from tests.service.given import (
    BATCH,
    Clock,
    checkpoint,
    leader,
    log,
    placed,
    plan,
    record,
    row,
    snapshot,
    view,
)
from tests.service.test_store_reconciling import fresh
from workers.plan import TimelineKind
from workers.status import Outcome, RoundRecord, RunPhase, TimelineRow

pytestmark = pytest.mark.anyio


async def test_folding_a_snapshot_twice_stores_it_once(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    taken = snapshot(
        job,
        [record(1), record(2, eval__accuracy=0.5)],
        logs=(log(b"one\ntwo\n"),),
        timeline=(row("a", cost_s=0.1), row("b", cost_s=0.2)),
        checkpoints=(checkpoint(2),),
    )
    first = await store.reconciler.fold(taken, fence)
    again = await store.reconciler.fold(taken, fence)
    assert first == again == await store.reconciler.acknowledged(job.id, 1)
    assert first.rounds == (1, 2)
    assert first.log_offsets == {"1.0": 8}
    assert first.timeline == {"a", "b"}
    assert first.checkpoints == {checkpoint(2).path}
    assert [p.step for p in await store.telemetry.points(job.id)] == [1, 2]
    assert [e.seq for e in await store.telemetry.timeline(job.id, 0, 10)] == [1, 2]
    assert b"".join(p.data for p in await store.telemetry.logs(job.id, None, 0, 1000)) == b"one\ntwo\n"
    now = await fresh(store, job)
    assert (now.samples, now.total_samples, now.num_current) == (2 * BATCH, 100 * BATCH, 1)
    assert (now.loss, dict(now.eval_values)) == (0.5, {"accuracy": 0.5})


async def test_of_two_records_with_one_key_the_higher_generation_stays(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    await store.reconciler.fold(snapshot(job, [record(1), record(2, loss=7.0, generation=1)]), fence)
    await store.reconciler.fold(snapshot(job, [record(2, loss=5.0, generation=2), record(3, generation=2)]), fence)
    await store.reconciler.fold(snapshot(job, [record(2, loss=7.0, generation=1)]), fence)
    told = [(p.step, p.values["loss"]) for p in await store.telemetry.points(job.id)]
    assert told == [(1, 1.0), (2, 5.0), (3, 1 / 3)]


async def test_a_restore_hides_what_older_lineages_had_from_its_first_round_on(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    await store.reconciler.fold(snapshot(job, [record(r, loss=1.0) for r in range(1, 8)]), fence)
    await store.reconciler.fold(snapshot(job, [record(r, loss=2.0, lineage=2) for r in (4, 5)]), fence)
    await store.reconciler.fold(snapshot(job, [record(r, loss=3.0, lineage=3) for r in (5, 6)]), fence)
    told = [(p.step, p.values["loss"]) for p in await store.telemetry.points(job.id)]
    assert told == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 3.0), (6, 3.0)]
    assert (await store.reconciler.acknowledged(job.id, 1)).rounds == (3, 6)
    await store.reconciler.fold(snapshot(job, [record(1, loss=4.0, lineage=4)]), fence)
    assert [p.values["loss"] for p in await store.telemetry.points(job.id)] == [4.0]


@pytest.mark.parametrize("is_ended", [False, True])
@pytest.mark.parametrize("is_fresh_start", [False, True])
async def test_an_attempt_is_told_how_far_those_before_it_came_unless_it_begins_anew(
    store: Store, is_fresh_start: bool, is_ended: bool
) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    assert (await store.reconciler.acknowledged(job.id, 1)).before == 0
    end = (row("end/cancelled", cost_s=0.0, kind=TimelineKind.END),) if is_ended else ()
    first = snapshot(job, [record(r) for r in range(1, 9)], timeline=end)
    assert (await store.reconciler.fold(first, fence)).before == 0
    for verb in (Verb.CANCEL, Verb.RETRY):
        job = await fresh(store, job)
        move = command(verb, job.state, job.attempt)
        assert isinstance(move, Move)
        job = await store.jobs.command(job, move, is_fresh_start=is_fresh_start and verb is Verb.RETRY)
        if verb is Verb.CANCEL:
            await store.reconciler.transition(job, JobState.CANCELLED, Transition(), fence)
    job = await store.reconciler.admit(job, 1, fence)
    told = await store.reconciler.acknowledged(job.id, 2)
    assert (told.before, told.is_before_least) == ((0, False) if is_fresh_start else (8, not is_ended))
    assert (await store.reconciler.fold(snapshot(job, [record(6)]), fence)).before == 0


async def test_whoever_begins_a_term_is_told_the_exchange_that_was_judged_last(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    assert (await store.reconciler.acknowledged(job.id, 1)).exchange == ""

    def verdict(key: str, before: str, after: str, **more: bool) -> TimelineRow:
        found = row(key, cost_s=0.0, kind=TimelineKind.PROBATION)
        return replace(found, actor="communication", before={"scheme": before}, after={"scheme": after, **more})

    kept, left_open = verdict("c/1", "none", "int8", is_kept=True), verdict("c/2", "int8", "int4", is_kept=False)
    of_parts = row("p/1", cost_s=0.0, kind=TimelineKind.PROBATION)
    for told in (kept, left_open, of_parts):
        await store.reconciler.fold(snapshot(job, [record(1)], timeline=(told,)), fence)
        assert (await store.reconciler.acknowledged(job.id, 2)).exchange == "int8"


async def test_steps_do_not_count_skipped_rounds(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    await store.reconciler.fold(snapshot(job, [record(1), record(2, skipped=True), record(3)]), fence)
    await store.reconciler.fold(snapshot(job, [record(4, skipped=True), record(5)]), fence)
    assert [p.step for p in await store.telemetry.points(job.id)] == [1, 1, 2, 2, 3]


def several(round: int, num_steps: int, **more: Any) -> RoundRecord:
    return replace(record(round, **more), num_steps=num_steps)


async def test_steps_count_all_of_a_round_that_has_several(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    await store.reconciler.fold(snapshot(job, [several(1, 25), several(2, 25), several(3, 10)]), fence)
    await store.reconciler.fold(snapshot(job, [several(4, 25, skipped=True), several(5, 25)]), fence)
    assert [p.step for p in await store.telemetry.points(job.id)] == [25, 50, 60, 60, 85]
    # One that is told again, a new one, and one after rounds that were thinned out.
    told = [several(3, 10, generation=2), several(6, 25, generation=2), several(9, 25, generation=2)]
    await store.reconciler.fold(snapshot(job, told), fence)
    assert [p.step for p in await store.telemetry.points(job.id)] == [25, 50, 60, 60, 85, 110, 185]
    restored = [several(r, 25, lineage=2) for r in (4, 5)]
    await store.reconciler.fold(snapshot(job, restored), fence)
    assert [p.step for p in await store.telemetry.points(job.id)] == [25, 50, 60, 85, 110]


@pytest.mark.parametrize(("since_step", "first"), [(0, 1), (25, 1), (26, 2), (60, 3), (61, 4), (110, 5), (111, None)])
async def test_what_is_told_since_a_step_begins_with_the_round_that_reaches_it(
    store: Store, since_step: int, first: int | None
) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    await store.reconciler.fold(snapshot(job, [several(r, 10 if r == 3 else 25) for r in range(1, 8)]), fence)
    await store.reconciler.fold(snapshot(job, [several(r, 25, lineage=2) for r in (4, 5)]), fence)
    found = [p.round for p in await store.telemetry.points(job.id, since_step)]
    assert found == ([] if first is None else [*range(first, 6)])
    parts = await store.telemetry.extent(job.id, since_step)
    assert [r for part in parts for r in range(part.first, part.last + 1)] == found


async def test_values_that_are_not_finite_are_gaps(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    second = record(2, loss=math.nan, grad_norm=math.inf, lr=0.1, eval__loss=math.nan, user__margin=math.nan)
    await store.reconciler.fold(snapshot(job, [record(1, loss=0.5), second]), fence)
    for keys in (None, frozenset(("loss", "lr", "eval.loss", "user.margin"))):
        points = await store.telemetry.points(job.id, keys=keys)
        assert [dict(p.values) for p in points] == [{"loss": 0.5}, {"lr": 0.1}]
        (stretch,) = await store.telemetry.stretches(job.id, await store.telemetry.extent(job.id), 16, keys)
        assert set(stretch) == {"loss", "lr"}
    assert (await fresh(store, job)).loss == 0.5


async def test_log_bytes_are_stored_once_in_whole_lines(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    acked = await store.reconciler.fold(snapshot(job, logs=(log(b"one\ntw"),)), fence)
    assert acked.log_offsets == {"1.0": 4}
    acked = await store.reconciler.fold(snapshot(job, logs=(log(b"one\ntwo\nthr"),)), fence)
    assert acked.log_offsets == {"1.0": 8}
    gone = snapshot(job, logs=(log(b"thr", offset=8),), workers=())
    assert (await store.reconciler.fold(gone, fence)).log_offsets == {"1.0": 11}
    assert b"".join(p.data for p in await store.telemetry.logs(job.id, None, 0, 1000)) == b"one\ntwo\nthr"


async def test_a_gap_in_a_log_is_told(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    await store.reconciler.fold(snapshot(job, logs=(log(b"a\n"),)), fence)
    acked = await store.reconciler.fold(snapshot(job, logs=(log(b"z\n", offset=100),)), fence)
    assert acked.log_offsets == {"1.0": 102}
    text = b"".join(p.data for p in await store.telemetry.logs(job.id, None, 0, 1000))
    assert text == b"a\n[98 bytes of the log of worker 1.0 are lost]\nz\n"


async def test_a_rank_s_log_has_what_its_worker_wrote_before_it_had_the_rank(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    workers = (view("1.0", 0), view("1.1", 1))
    await store.reconciler.fold(
        snapshot(job, logs=(log(b"b0\n", rank=None), log(b"b1\n", worker="1.1", rank=None)), workers=workers), fence
    )
    await store.reconciler.fold(
        snapshot(job, logs=(log(b"t0\n", offset=3), log(b"t1\n", worker="1.1", offset=3, rank=1)), workers=workers),
        fence,
    )

    async def text(rank: int | None) -> bytes:
        return b"".join(p.data for p in await store.telemetry.logs(job.id, rank, 0, 1000))

    assert await text(0) == b"b0\nt0\n"
    assert await text(1) == b"b1\nt1\n"
    assert await text(None) == b"b0\nb1\nt0\nt1\n"
    assert await text(7) == b""


async def test_any_number_that_a_caller_may_give_is_looked_for(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    await store.reconciler.fold(snapshot(job, logs=(log(b"a\n"),), timeline=(row("resize"),)), fence)
    assert await store.jobs.events(job.id, 0, 10)
    assert await store.telemetry.timeline(job.id, 0, 10)
    for number in (2**31, MAX_INT):
        assert await store.jobs.events(job.id, number, 10) == []
        assert await store.telemetry.timeline(job.id, number, 10) == []
        assert await store.telemetry.logs(job.id, number, 0, 10) == []
        assert await store.telemetry.log_tail(job.id, number, 10, 10) == []
        assert await store.telemetry.points(job.id, since_step=number) == []


async def test_a_timeline_row_is_completed_by_its_cost_and_not_emptied_again(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    for cost_s in (None, 0.25, None):
        await store.reconciler.fold(snapshot(job, timeline=(row("a", cost_s=cost_s),)), fence)
    (entry,) = await store.telemetry.timeline(job.id, 0, 10)
    assert (entry.seq, entry.cost_s, entry.steps_lost, entry.before) == (1, 0.25, 0, {"workers": 1})


async def test_a_successor_is_told_what_is_unpriced_and_when_the_last_commit_was(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    told = snapshot(job, [record(1), record(2)], timeline=(row("plan/1/1", cost_s=0.5), row("plan/1/2")))
    await store.reconciler.fold(told, fence)
    stored = await store.reconciler.acknowledged(job.id, job.attempt)
    assert stored.committed_at == record(2).time
    assert stored.unpriced == (row("plan/1/2"),)


async def test_a_snapshot_of_another_attempt_or_an_older_term_is_refused(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    await store.reconciler.new_term(job, fence)
    with pytest.raises(StaleRowError):
        await store.reconciler.fold(snapshot(job, [record(1)]), fence)
    with pytest.raises(StaleRowError):
        await store.reconciler.fold(snapshot(job, [record(1)], attempt=2, term=2), fence)
    assert await store.telemetry.points(job.id) == []


async def test_worker_seconds_grow_by_what_was_held_since_the_last_look(store: Store, clock: Clock) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    await store.reconciler.fold(snapshot(job, workers=(view("1.0"), view("1.1", 1))), fence)
    clock.advance(100)
    await store.reconciler.fold(snapshot(job, workers=(view("1.0"),)), fence)
    clock.advance(10)
    await store.reconciler.fold(snapshot(job, phase=RunPhase.ENDED, outcome=Outcome.SUCCEEDED, workers=()), fence)
    clock.advance(10)
    await store.reconciler.fold(snapshot(job, phase=RunPhase.ENDED, outcome=Outcome.SUCCEEDED, workers=()), fence)
    assert (await fresh(store, job)).worker_s == pytest.approx(210)


async def test_what_was_trained_before_the_first_look_counts_from_its_first_step(store: Store, clock: Clock) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    begun_s = clock.now_s
    clock.advance(100)
    first = replace(record(1), time=begun_s + 60, values={"loss": 1.0, "step_s": 2.0})
    two = (view("1.0"), view("1.1", 1))
    await store.reconciler.fold(snapshot(job, [first], workers=two), fence)
    assert (await fresh(store, job)).worker_s == pytest.approx(2 * 42)
    clock.advance(10)
    later = replace(record(2), time=begun_s + 105)
    await store.reconciler.fold(snapshot(job, [later], workers=two), fence)
    assert (await fresh(store, job)).worker_s == pytest.approx(2 * 52)


async def test_workers_that_had_left_before_the_first_look_count_until_their_last_step(
    store: Store, clock: Clock
) -> None:
    fence = await leader(store)
    job = await placed(store, fence)
    told = [replace(record(n), time=clock.now_s + 10 * n, values={"loss": 1.0, "step_s": 5.0}) for n in (1, 4)]
    clock.advance(7200)
    done = plan(32)
    ended = snapshot(job, told, phase=RunPhase.ENDED, outcome=Outcome.SUCCEEDED, workers=(), plan=done)
    await store.reconciler.fold(ended, fence)
    assert (await fresh(store, job)).worker_s == pytest.approx(35 * done.num_members) != 0
