"""However much there is: what is read, sent and kept at once has a bound, and all of it can still be had."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

import httpx2
import pytest
from sqlalchemy import update

from service.feed import read_topics
from service.services import Services
from service.states import JobState
from service.store.opening import Store
from service.store.schema import jobs
from service.store.telemetry import Following
from service.sweep_specs import read_sweep_spec, sample_job
from service.telemetry import LogQuery
from tests.service.given import Clock, leader, log, placed, record, row, snapshot, spec
from tests.service.query_plans import most_rows, noted_statements
from tests.service.scene import Scene
from tests.service.scheduled import schedule_spec
from tests.service.swept import JOB, sweep_document
from tests.service.test_long_queue import add_queued
from tests.service.test_stream import Reader
from workers.plan import TimelineKind

pytestmark = pytest.mark.anyio

NUM = 9
FEW = 2
LARGE = {"text": "x" * 40_000}


async def _points(store: Store) -> str:
    job = await placed(store, fence := await leader(store))
    for n in range(1, NUM + 1):
        await store.reconciler.fold(snapshot(job, [record(n)]), fence)
    return f"metrics:{job.id}"


async def _logs(store: Store) -> str:
    job = await placed(store, fence := await leader(store))
    for n in range(NUM):
        await store.reconciler.fold(snapshot(job, logs=(log(b"%04d\n" % n, offset=5 * n),)), fence)
    return f"logs:{job.id}"


async def _timeline(store: Store) -> str:
    job = await placed(store, fence := await leader(store))
    for n in range(NUM):
        await store.reconciler.fold(snapshot(job, timeline=(row(f"k{n}", cost_s=0.1),)), fence)
    return f"job:{job.id}"


async def _jobs(store: Store) -> str:
    for _ in range(NUM):
        await store.jobs.submit(spec())
    return "jobs"


async def _sweeps(store: Store) -> str:
    parsed = read_sweep_spec(sweep_document(job={**JOB, "config": LARGE}), has_prices=False)
    for _ in range(NUM):
        await store.sweeps.create(parsed, sample_job(parsed))
    return "sweeps"


async def _schedules(store: Store) -> str:
    for n in range(NUM):
        target = {"job": {"entrypoint": JOB["entrypoint"], "steps": 10, "config": LARGE}}
        await store.schedules.create(*schedule_spec(name=f"s-{n}", target=target))
    return "schedules"


@pytest.mark.parametrize(
    ("bound", "event", "tell"),
    [
        ("MAX_POINTS_A_BATCH", "metrics", _points),
        ("MAX_LOG_CHUNKS_A_BATCH", "log", _logs),
        ("MAX_TIMELINE_A_BATCH", "timeline", _timeline),
        ("MAX_ROWS_A_BATCH", "job", _jobs),
        ("MAX_ROWS_A_BATCH", "sweep", _sweeps),
        ("MAX_ROWS_A_BATCH", "schedule", _schedules),
    ],
)
async def test_a_reader_who_begins_at_nought_gets_everything_in_small_parts(
    client: httpx2.AsyncClient,
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
    event: str,
    tell: Callable[[Store], Awaitable[str]],
) -> None:
    monkeypatch.setattr(f"service.store.telemetry.{bound}", FEW)
    topic = await tell(services.store)
    await services.feed.look()
    engine = await services.store.database.read(lambda conn: conn.engine)
    with noted_statements(engine) as statements:
        async with aclosing(services.feed.follow(read_topics([topic]), after=0)) as stream:
            reader = Reader(stream)
            told = [await reader.until(event) for _ in range(NUM)]
    assert len({str(data) for data in told}) == NUM
    # One more than the bound: what was written together stays together.
    assert await services.store.database.read(lambda conn: most_rows(conn, statements)) == FEW + 1


async def test_a_reader_far_behind_a_loud_job_is_given_so_many_bytes_at_once(
    client: httpx2.AsyncClient, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes back after minutes would else have all that was written meanwhile held for it alone."""
    monkeypatch.setattr("service.store.telemetry.MAX_LOG_BYTES_A_BATCH", 12)  # of lines of five bytes
    job_id = (await _logs(services.store)).partition(":")[2]
    store, after, sizes = services.store.telemetry, 0, []
    while after < (upto := await store.change()):
        end = await store.batch_end(Following(logs=(job_id,)), after, upto)
        sizes.append(sum(len(piece.data) for piece in await store.logs_changed(job_id, after, end)))
        after = end
    assert [size for size in sizes if size] == [15, 15, 15]


async def _large_jobs(store: Store) -> list[str]:
    return [(await store.jobs.submit(spec(config=LARGE))).job.id for _ in range(NUM)]


async def _batches(store: Store) -> list[list[str]]:
    """What a reader of all jobs is given from the beginning on."""
    after, found = 0, []
    while after < (upto := await store.telemetry.change()):
        end = await store.telemetry.batch_end(Following(has_all_jobs=True), after, upto)
        found.append([job.id for job in await store.telemetry.jobs_changed(after, end)])
        after = end
    return [batch for batch in found if batch]


@pytest.mark.parametrize(("bound", "sizes"), [(100_000, [3, 3, 3]), (1, [1] * NUM), (2**30, [NUM])])
async def test_a_reader_far_behind_large_jobs_is_given_so_many_bytes_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, bound: int, sizes: list[int]
) -> None:
    monkeypatch.setattr("service.store.telemetry.MAX_ROW_BYTES_A_BATCH", bound)
    ids = await _large_jobs(store)
    batches = await _batches(store)
    assert [len(batch) for batch in batches] == sizes
    assert [job_id for batch in batches for job_id in batch] == ids


@pytest.mark.parametrize("tell", [_sweeps, _schedules])
@pytest.mark.parametrize(("bound", "sizes"), [(100_000, [3, 3, 3]), (1, [1] * NUM), (2**30, [NUM])])
async def test_a_reader_far_behind_large_sweeps_or_schedules_is_given_so_many_bytes_at_once(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    tell: Callable[[Store], Awaitable[str]],
    bound: int,
    sizes: list[int],
) -> None:
    monkeypatch.setattr("service.store.telemetry.MAX_ROW_BYTES_A_BATCH", bound)
    topic = await tell(store)
    changed = {"sweeps": store.sweeps.changed, "schedules": store.schedules.changed}[topic]
    wanted = Following(has_all_sweeps=topic == "sweeps", has_all_schedules=topic == "schedules")
    after, found = 0, []
    while after < (upto := await store.telemetry.change()):
        end = await store.telemetry.batch_end(wanted, after, upto)
        found.append(len(await changed(after, end)))
        after = end
    assert [number for number in found if number] == sizes


async def test_jobs_that_were_written_together_come_together(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.store.telemetry.MAX_ROW_BYTES_A_BATCH", 1)
    ids = await _large_jobs(store)
    change = await store.telemetry.change()
    together = update(jobs).where(jobs.c.id.in_(ids[3:])).values(changed=change)
    await store.database.write_quietly(lambda conn: conn.execute(together))
    assert [sorted(batch) for batch in await _batches(store)] == [[ids[0]], [ids[1]], [ids[2]], ids[3:]]


async def test_a_stream_tells_of_each_large_job_once(
    client: httpx2.AsyncClient, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.store.telemetry.MAX_ROW_BYTES_A_BATCH", 100_000)
    ids = await _large_jobs(services.store)
    last = (await services.store.jobs.submit(spec())).job.id
    await services.feed.look()
    async with aclosing(services.feed.follow(read_topics(["jobs"]), after=0)) as stream:
        reader = Reader(stream)
        told = [(await reader.until("job"))["id"] for _ in range(NUM + 1)]
    assert told == [*ids, last]


async def test_a_log_is_looked_through_in_small_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.store.telemetry.MAX_LOG_CHUNKS_A_BATCH", FEW)
    job_id = (await _logs(store)).partition(":")[2]
    engine = await store.database.read(lambda conn: conn.engine)
    with noted_statements(engine) as statements:
        whole = await store.telemetry.logs(job_id, None, 0, 10**6)
        tail = await store.telemetry.log_tail(job_id, None, 10**6, 10**6)
    assert b"".join(piece.data for piece in whole) == b"".join(b"%04d\n" % n for n in range(NUM))
    assert tail == whole
    assert await store.database.read(lambda conn: most_rows(conn, statements)) == FEW


async def test_an_answer_of_a_log_ends_at_a_bound_of_bytes_or_lines(
    client: httpx2.AsyncClient, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = (await _logs(services.store)).partition(":")[2]
    with monkeypatch.context() as small:
        small.setattr("service.telemetry.MAX_LOG_BYTES", 10)
        first = await services.telemetry.logs(job_id, LogQuery(rank=0, offset=0))
        assert (first.text, first.next_offset) == ("0000\n0001\n", 10)
        assert (await services.telemetry.logs(job_id, LogQuery(rank=0, offset=10))).text == "0002\n0003\n"
        tail = await services.telemetry.logs(job_id, LogQuery(rank=0, tail=100))
        assert (tail.text, tail.is_cut) == ("0007\n0008\n", True)
    monkeypatch.setattr("service.telemetry.MAX_TAIL_LINES", 3)
    tail = await services.telemetry.logs(job_id, LogQuery(rank=0, tail=100))
    assert (tail.text, tail.is_cut) == ("0006\n0007\n0008\n", True)


async def test_an_answer_of_a_timeline_ends_at_a_bound_of_bytes(
    client: httpx2.AsyncClient, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.store.list_parts.MAX_PAGE_BYTES", 25_000)
    job = await placed(services.store, fence := await leader(services.store))
    told = tuple(replace(row(f"k{n}", cost_s=0.1), reason="x" * 10_000) for n in range(NUM))
    await services.store.reconciler.fold(snapshot(job, timeline=told), fence)
    seen: list[list[int]] = []
    while rows := await services.telemetry.timeline(job.id, seen[-1][-1] if seen else 0):
        seen.append([entry["seq"] for entry in rows])
    assert [len(part) for part in seen] == [3, 3, 3]
    assert [seq for part in seen for seq in part] == [*range(1, NUM + 1)]


async def test_a_change_is_looked_for_among_so_many_rows_of_a_timeline(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await placed(store, fence := await leader(store))
    saved = [row(f"k{n}", cost_s=0.1, kind=TimelineKind.CHECKPOINT) for n in range(NUM)]
    await store.reconciler.fold(snapshot(job, timeline=(row("first", cost_s=0.1), *saved)), fence)
    assert [entry.kind for entry in await store.telemetry.timeline_newest(job.id, 5, 0)] == [TimelineKind.RESIZE]
    monkeypatch.setattr("service.store.telemetry.MAX_TIMELINE_LOOKED_AT", NUM)
    assert await store.telemetry.timeline_newest(job.id, 5, 0) == []


async def test_a_line_that_has_no_end_is_stored_once_it_is_long(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.store.folding.MAX_LINE_BYTES", 8)
    job = await placed(store, fence := await leader(store))
    stored = await store.reconciler.fold(snapshot(job, logs=(log(b"a\n1234567"),)), fence)
    assert stored.log_offsets == {"1.0": 2}
    stored = await store.reconciler.fold(snapshot(job, logs=(log(b"12345678", offset=2),)), fence)
    assert stored.log_offsets == {"1.0": 10}


async def test_a_controller_is_told_the_newest_rows_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.store.folding.MAX_ACKNOWLEDGED_KEYS", 3)
    monkeypatch.setattr("service.store.folding.MAX_UNPRICED", FEW)
    job = await placed(store, fence := await leader(store))
    stored = await store.reconciler.fold(snapshot(job, timeline=tuple(row(f"k{n}") for n in range(NUM))), fence)
    assert stored.timeline == {"k6", "k7", "k8"}
    told = await store.reconciler.acknowledged(job.id, job.attempt)
    assert [each.key for each in told.unpriced] == ["k7", "k8"]


async def test_a_tick_reads_the_first_in_line_and_those_that_can_never_start_hold_nobody_up(
    scene: Scene, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.reconciler.reconciler.LINE", 3)
    await scene.restart()
    asked: list[int] = []
    survey = scene.store.reconciler.survey

    async def noted(max_queued: int) -> object:
        found = await survey(max_queued)
        asked.append(sum(job.state is JobState.QUEUED for job in found.jobs))
        return found

    monkeypatch.setattr(scene.store.reconciler, "survey", noted)
    await scene.submit(workers=9, batch={"global_size": 32})
    await scene.store.database.write_quietly(lambda conn: add_queued(conn, 4))
    clock.advance(10)
    small = await scene.submit(name="small", steps=20)
    await scene.store.database.write_quietly(lambda conn: add_queued(conn, 20))
    await scene.until_state(small, JobState.RUNNING, JobState.SUCCEEDED)
    assert asked[0] == 3
    assert max(asked) <= 5 + 3


async def test_who_looks_for_what_belongs_to_no_job_reads_none_that_waits(scene: Scene) -> None:
    await scene.submit()
    await scene.store.database.write_quietly(lambda conn: add_queued(conn, NUM))
    engine = await scene.store.database.read(lambda conn: conn.engine)
    with noted_statements(engine) as statements:
        await scene.reconciler._reaper.look(0.0)
    whole = [sent for sent in statements if "jobs.spec" in sent[0]]
    assert whole
    assert await scene.store.database.read(lambda conn: most_rows(conn, whole)) == 0
