"""Event streams: what arrives, in which order, and that nothing is lost when they break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx2
import pytest

from service.feed import Encoded, frames, read_topics
from service.records import ClusterView
from service.services import Services
from tests.service.given import Clock, leader, log, placed, record, row, snapshot, spec
from tests.service.swept import Swept, point
from tests.service.test_api_jobs import assert_problem

pytestmark = pytest.mark.anyio

WAIT_S = 60.0


class Reader:
    """Takes a stream apart as a browser does."""

    def __init__(self, frames: AsyncIterator[bytes]) -> None:
        self._frames = frames
        self._buffer = ""
        self.last_id: int | None = None

    async def next(self) -> tuple[str, dict[str, Any]]:
        while True:
            while "\n\n" not in self._buffer:
                async with asyncio.timeout(WAIT_S):
                    self._buffer += (await anext(self._frames)).decode()
            frame, _, self._buffer = self._buffer.partition("\n\n")
            fields = dict(line.split(": ", 1) for line in frame.splitlines() if not line.startswith(":"))
            if "id" in fields:
                self.last_id = int(fields["id"])
            if "data" in fields:
                return fields["event"], json.loads(fields["data"])

    async def until(self, name: str) -> dict[str, Any]:
        while True:
            event, data = await self.next()
            if event == name:
                return data


def follow(services: Services, *topics: str, after: int | None = None) -> AsyncGenerator[bytes]:
    return services.feed.follow(read_topics(topics), after)


async def test_everything_that_a_page_shows_arrives(client: httpx2.AsyncClient, services: Services) -> None:
    fence = await leader(services.store)
    job = await placed(services.store, fence)
    topics = [f"{kind}:{job.id}" for kind in ("job", "metrics", "logs")]
    async with aclosing(follow(services, "cluster", *topics)) as stream:
        reader = Reader(stream)
        assert (await reader.until("cluster"))["is_up"] is False
        assert (await reader.until("job"))["state"] == "STARTING"
        assert (await reader.until("metrics"))["points"] == []
        assert (await reader.until("log"))["next_offset"] == 0
        told = snapshot(job, [record(1), record(2)], logs=(log(b"hello\n"),), timeline=(row("a"),))
        await services.store.reconciler.fold(told, fence)
        seen = dict([await reader.next() for _ in range(4)])
        assert [(p["step"], p["values"]) for p in seen["metrics"]["points"]] == [(1, {"loss": 1.0}), (2, {"loss": 0.5})]
        assert (seen["log"]["text"], seen["log"]["rank"], seen["log"]["next_offset"]) == ("hello\n", 0, 6)
        assert (seen["timeline"]["seq"], seen["timeline"]["kind"]) == (1, "resize")
        assert seen["job"]["progress"]["samples"] == 64
        assert {data["job_id"] for name, data in seen.items() if name != "job"} == {job.id}
        await services.store.reconciler.put_cluster(ClusterView(is_up=True), fence)
        assert (await reader.until("cluster"))["is_up"] is True


async def test_a_sweep_tells_of_each_change_of_its_trials(
    client: httpx2.AsyncClient, services: Services, clock: Clock
) -> None:
    swept = await Swept.created(services.store, clock, await leader(services.store))
    async with aclosing(follow(services, f"sweep:{swept.id}")) as one:
        reader = Reader(one)
        assert (await reader.until("sweep"))["trials"]["running"] == 0
        before = (await swept.row()).changed
        await swept.begin(point(0.01))
        await services.feed.look()
        assert (await reader.until("sweep"))["trials"]["running"] == 1
        await swept.complete(0, 0.9)
        await services.feed.look()
        told = await reader.until("sweep")
        assert (told["trials"]["complete"], told["best"]["value"]) == (1, 0.9)
        async with aclosing(follow(services, "sweeps", after=before)) as again:
            assert (await Reader(again).until("sweep")) == told


async def test_a_broken_stream_goes_on_where_it_was(client: httpx2.AsyncClient, services: Services) -> None:
    fence = await leader(services.store)
    job = await placed(services.store, fence)
    topic = f"metrics:{job.id}"
    steps: list[int] = []
    last_id: int | None = await services.store.telemetry.change()
    for begin in range(1, 40, 4):
        for r in range(begin, begin + 4):
            await services.store.reconciler.fold(snapshot(job, [record(r)]), fence)
        async with aclosing(follow(services, topic, after=last_id)) as stream:
            reader = Reader(stream)
            # It breaks in the middle: what was not read yet must come again.
            for _ in range(2):
                steps += [point["step"] for point in (await reader.until("metrics"))["points"]]
            last_id = reader.last_id
    async with aclosing(follow(services, topic, after=last_id)) as stream:
        reader = Reader(stream)
        while len(steps) < 40:
            steps += [point["step"] for point in (await reader.until("metrics"))["points"]]
    assert steps == list(range(1, 41))


async def test_a_stream_begins_with_what_a_page_may_have_missed(client: httpx2.AsyncClient, services: Services) -> None:
    fence = await leader(services.store)
    job = await placed(services.store, fence)
    told = snapshot(job, [record(1)], logs=(log(b"hello\n"),), timeline=(row("a"), row("b")))
    await services.store.reconciler.fold(told, fence)
    async with aclosing(follow(services, *(f"{kind}:{job.id}" for kind in ("job", "metrics", "logs")))) as stream:
        reader = Reader(stream)
        seen = dict([await reader.next() for _ in range(4)])
    assert seen["timeline"]["seq"] == 2
    assert seen["job"]["progress"]["samples"] == 32
    assert seen["metrics"] == {"job_id": job.id, "points": []}
    assert (seen["log"]["text"], seen["log"]["next_offset"]) == ("", 6)


async def test_a_list_sees_each_job_as_it_is_now(client: httpx2.AsyncClient, services: Services) -> None:
    async with aclosing(follow(services, "jobs", after=0)) as stream:
        reader = Reader(stream)
        answer = await client.post("/api/v1/jobs", json=spec().model_dump(mode="json"))
        assert (await reader.until("job"))["id"] == answer.json()["id"]
        await client.post(f"/api/v1/jobs/{answer.json()['id']}/cancel")
        assert (await reader.until("job"))["state"] == "CANCELLED"


async def test_two_readers_get_the_same_and_a_slow_one_gets_all_later(
    client: httpx2.AsyncClient, services: Services
) -> None:
    fence = await leader(services.store)
    job = await placed(services.store, fence)
    after = await services.store.telemetry.change()
    topic = f"metrics:{job.id}"
    async with (
        aclosing(follow(services, topic, after=after)) as fast,
        aclosing(follow(services, topic, after=after)) as slow,
    ):
        readers = [Reader(fast), Reader(slow)]
        for r in range(1, 6):
            await services.store.reconciler.fold(snapshot(job, [record(r)]), fence)
            await readers[0].until("metrics")
        assert services.feed.num_streams == 1  # the slow one has not begun to read
        got = [(await readers[1].until("metrics"))["points"][0]["step"] for _ in range(5)]
    assert got == [1, 2, 3, 4, 5]
    assert services.feed.num_streams == 0


async def test_a_quiet_stream_shows_that_it_lives(
    client: httpx2.AsyncClient, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.feed.HEARTBEAT_S", 0.01)
    async with aclosing(follow(services, "jobs")) as stream:
        got = [await anext(stream) for _ in range(3)]
    assert got == [b"retry: 2000\n\n", b": still here\n\n", b": still here\n\n"]


async def test_an_id_from_another_database_begins_now(client: httpx2.AsyncClient, services: Services) -> None:
    job = (await services.store.jobs.submit(spec())).job
    async with aclosing(follow(services, f"job:{job.id}", after=10**9)) as stream:
        reader = Reader(stream)
        assert (await reader.until("job"))["id"] == job.id
        assert reader.last_id == job.changed


def test_only_the_last_event_of_a_change_has_an_id() -> None:
    events = [Encoded(1, b"a\n"), Encoded(2, b"b\n"), Encoded(2, b"c\n")]
    assert frames(events) == [b"a\nid: 1\n\n", b"b\n\n", b"c\nid: 2\n\n"]


async def test_bad_topics_and_ids_are_refused(client: httpx2.AsyncClient, services: Services) -> None:
    path = "/api/v1/stream"
    assert_problem(await client.get(path), 422, "INVALID")
    for topic in ("", "job", "job:x", "jobs:x", "sweep:a", "logs:job_1", "\0", "job:job_" + "0" * 10**4):
        assert_problem(await client.get(path, params={"topic": topic}), 400, "BAD_REQUEST")
    unknown = await client.get(path, params={"topic": "job:job_" + "0" * 26})
    assert_problem(unknown, 404, "NOT_FOUND")
    for bad in ("x", "-1", "9" * 30, "\u0661".encode()):
        answer = await client.get(path, params={"topic": "jobs"}, headers={"Last-Event-ID": bad})
        assert_problem(answer, 400, "BAD_REQUEST")
    for after in ("", "x", "-1", "1.5", "9" * 30):
        assert_problem(await client.get(path, params={"topic": "jobs", "after": after}), 422, "INVALID")
    for number, status, code in ((51, 400, "BAD_REQUEST"), (101, 422, "INVALID")):
        many = [f"metrics:job_{n:026d}" for n in range(number)]
        assert_problem(await client.get(path, params={"topic": many}), status, code)


async def test_streams_are_bounded(client: httpx2.AsyncClient, services: Services) -> None:
    services.feed.num_streams = services.settings.max_streams
    answer = await client.get("/api/v1/stream", params={"topic": "jobs"})
    assert_problem(answer, 429, "TOO_MANY")
    assert answer.headers["retry-after"] == "1"
