"""Many viewers of one job: each gets everything however often it is cut off, and all together cost like one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

import httpx2
import pytest

from service.feed import Feed, read_topics
from service.records import JobRow, Point
from service.services import Services
from service.shared_answers import SharedAnswers
from service.store.telemetry import MAX_POINTS_A_BATCH, TelemetryStore
from tests.service.given import leader, log, placed, record, row, snapshot, spec
from tests.service.test_stream import Reader

pytestmark = pytest.mark.anyio

NUM_VIEWERS = 20
NUM_FOLDS = 30
A_FOLD = 3
LINE = b"a line\n"
LIMIT_S = 60.0


class CountingStore(TelemetryStore):
    """Notes how many points each look at them gave."""

    reads: list[int]

    async def points_changed(self, job_id: str, after: int, upto: int) -> list[Point]:
        found = await super().points_changed(job_id, after, upto)
        self.reads.append(len(found))
        return found


@pytest.fixture
def store(services: Services) -> CountingStore:
    made = CountingStore(services.store.database)
    made.reads = []
    return made


@pytest.fixture
def feed(services: Services, store: CountingStore) -> Feed:
    return Feed(store, services.store.sweeps, services.store.schedules, services.overview, services.prices, NUM_VIEWERS)


@dataclass
class Viewer:
    """Reads a few frames, is cut off, and comes back with the last id that it saw."""

    feed: Feed
    job_id: str
    last_id: int
    dice: random.Random
    steps: set[int] = field(default_factory=set)
    rows: set[int] = field(default_factory=set)
    log: dict[int, str] = field(default_factory=dict)
    num_cuts: int = 0

    @property
    def has_all(self) -> bool:
        return (len(self.steps), len(self.rows), len(self.log)) == (NUM_FOLDS * A_FOLD, NUM_FOLDS, NUM_FOLDS)

    def stream(self) -> AsyncGenerator[bytes]:
        topics = [f"{kind}:{self.job_id}" for kind in ("job", "metrics", "logs")]
        return self.feed.follow(read_topics(topics), self.last_id)

    async def watch(self) -> None:
        while not self.has_all:
            async with aclosing(self.stream()) as frames:
                reader = Reader(frames)
                for _ in range(self.dice.randint(1, 9)):
                    if self.has_all:
                        break
                    self._take(*await reader.next())
                    self.last_id = reader.last_id or self.last_id
            self.num_cuts += 1

    def _take(self, name: str, data: dict[str, object]) -> None:
        match name, data:
            case "metrics", {"points": [*points]}:
                self.steps |= {point["step"] for point in points}
            case "timeline", {"seq": int(seq)}:
                self.rows.add(seq)
            case "log", {"next_offset": int(end), "text": str(text)}:
                self.log[end] = text


async def tell(services: Services, feed: Feed, job: JobRow, fence: int) -> None:
    for n in range(NUM_FOLDS):
        told = snapshot(
            job,
            [record(A_FOLD * n + r) for r in range(1, A_FOLD + 1)],
            logs=(log(LINE, offset=n * len(LINE)),),
            timeline=(row(f"t{n}"),),
        )
        await services.store.reconciler.fold(told, fence)
        await feed.look()


async def test_viewers_that_are_cut_off_again_and_again_miss_nothing(
    client: httpx2.AsyncClient, services: Services, feed: Feed
) -> None:
    fence = await leader(services.store)
    job = await placed(services.store, fence)
    begin = await services.store.telemetry.change()
    viewers = [Viewer(feed, job.id, begin, random.Random(n)) for n in range(NUM_VIEWERS)]
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(tell(services, feed, job, fence), *(viewer.watch() for viewer in viewers))
    for viewer in viewers:
        assert viewer.steps == set(range(1, NUM_FOLDS * A_FOLD + 1))
        assert viewer.rows == set(range(1, NUM_FOLDS + 1))
        assert "".join(text for _, text in sorted(viewer.log.items())) == LINE.decode() * NUM_FOLDS
        assert viewer.num_cuts > NUM_FOLDS / 4
    assert feed.num_streams == 0


async def test_what_all_viewers_want_is_read_once(
    client: httpx2.AsyncClient, services: Services, feed: Feed, store: CountingStore
) -> None:
    fence = await leader(services.store)
    job = await placed(services.store, fence)
    begin = await services.store.telemetry.change()
    streams = [feed.follow(read_topics([f"metrics:{job.id}"]), begin) for _ in range(NUM_VIEWERS)]
    readers = [Reader(stream) for stream in streams]
    for n in range(1, 6):
        await services.store.reconciler.fold(snapshot(job, [record(n)]), fence)
        await feed.look()
        for found in await asyncio.gather(*(reader.until("metrics") for reader in readers)):
            assert [point["step"] for point in found["points"]] == [n]
    assert store.reads == [1] * 5
    for stream in streams:
        await stream.aclose()


async def test_a_viewer_far_behind_is_given_bounded_parts(
    client: httpx2.AsyncClient, services: Services, feed: Feed, store: CountingStore
) -> None:
    fence = await leader(services.store)
    job = await placed(services.store, fence)
    size = MAX_POINTS_A_BATCH // 2
    for n in range(5):
        await services.store.reconciler.fold(snapshot(job, [record(n * size + r) for r in range(1, size + 1)]), fence)
    await feed.look()
    steps: list[int] = []
    async with aclosing(feed.follow(read_topics([f"metrics:{job.id}"]), 0)) as stream:
        reader = Reader(stream)
        while len(steps) < 5 * size:
            steps += [point["step"] for point in (await reader.until("metrics"))["points"]]
    assert steps == list(range(1, 5 * size + 1))
    assert max(store.reads) <= MAX_POINTS_A_BATCH + size


async def test_streams_that_come_and_go_between_two_looks_get_what_is_new_and_leave_nothing(
    services: Services, feed: Feed
) -> None:
    left = []
    for _ in range(5):
        job = (await services.store.jobs.submit(spec())).job
        async with aclosing(feed.follow(read_topics([f"job:{job.id}"]), 0)) as stream:
            assert (await Reader(stream).until("job"))["id"] == job.id
        left.append(feed._shared.num_bytes)
    assert max(left) < 1.1 * min(left)


async def test_an_answer_is_made_once_and_kept_only_while_there_is_room() -> None:
    shared = SharedAnswers[bytes](len, 25)
    made: list[int] = []
    go_on = asyncio.Event()

    async def make(key: int) -> bytes:
        made.append(key)
        await go_on.wait()
        return bytes(10)

    waiting = [asyncio.ensure_future(shared.get(1, lambda: make(1))) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    go_on.set()
    assert [len(answer) for answer in await asyncio.gather(*waiting[1:])] == [10, 10]
    for key in (2, 3, 3, 1, 2):
        await shared.get(key, partial(make, key))
    assert made == [1, 2, 3, 3]
    assert shared.num_bytes == 20
    shared.clear()
    assert shared.num_bytes == 0


async def test_a_failure_reaches_all_who_wait_and_the_next_one_tries_again() -> None:
    shared = SharedAnswers[int](lambda _: 1, 10)
    answers = iter([OSError("away"), 5])

    async def make() -> int:
        found = next(answers)
        if isinstance(found, OSError):
            raise found
        return found

    first = await asyncio.gather(*(shared.get("a", make) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(each, OSError) for each in first)
    assert await shared.get("a", make) == 5
