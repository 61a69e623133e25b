"""What changed, as events for streams: read from the store, encoded once, shared by all who follow the same.

A reader's place is one number, the change up to which it has everything. A reader pulls: a slow one
falls behind and gets more at once later, and nothing is kept for it meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from service.cost import Prices
from service.documents import Document, job_document, point_document, timeline_document
from service.errors import BadRequestError, NotFoundError, TooManyError
from service.ids import JOB_ID, SWEEP_ID
from service.nudge import NudgeListener
from service.overview import Overview
from service.schedule_documents import schedule_document
from service.shared_answers import SharedAnswers
from service.store.schedules import ScheduleStore
from service.store.sweeps import SweepStore
from service.store.telemetry import Following, TelemetryStore
from service.sweep_documents import sweep_document
from service.sweep_records import SweepRow

HEARTBEAT_S = 15.0
MAX_TOPICS = 50
MAX_SHARED_BYTES = 8 * 2**20
BYTES_AN_EVENT = 200
"""Roughly, besides its data."""
BYTES_AN_ANSWER = 1000
"""Roughly, besides its events: what it is found by, and its place."""
HEARTBEAT = b": still here\n\n"
WHOLE = ("jobs", "sweeps", "schedules", "cluster")
OF_ONE = {"job": JOB_ID, "metrics": JOB_ID, "logs": JOB_ID, "sweep": SWEEP_ID}


@dataclass(frozen=True, slots=True)
class Topic:
    """``jobs``, ``sweeps``, ``schedules``, ``cluster``; ``job``, ``metrics``, ``logs`` of a job; ``sweep`` of one."""

    kind: str
    of: str = ""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One event without its id and end."""

    changed: int
    data: bytes


def read_topics(texts: Sequence[str]) -> tuple[Topic, ...]:
    """Topics as given in the address, each once. Raises BadRequestError."""
    topics: dict[Topic, None] = {}
    for text in texts:
        kind, _, of = text.partition(":")
        if (kind in WHOLE and not of) or (kind in OF_ONE and OF_ONE[kind].fullmatch(of)):
            topics[Topic(kind, of)] = None
        else:
            known = ", ".join((*WHOLE, *(f"{kind}:ID" for kind in OF_ONE)))
            raise BadRequestError(f"topic {text[:80]!r} is unknown; known, with whole ids: {known}")
    if not 1 <= len(topics) <= MAX_TOPICS:
        raise BadRequestError(f"{len(topics)} topics are given; give 1 to {MAX_TOPICS}, such as topic=jobs")
    return tuple(topics)


class Feed:
    """Looks at the database for all streams of this process; ``run`` it as a task while the process serves."""

    def __init__(
        self,
        store: TelemetryStore,
        sweeps: SweepStore,
        schedules: ScheduleStore,
        overview: Overview,
        prices: Prices,
        max_streams: int,
    ) -> None:
        self._store = store
        self._sweeps = sweeps
        self._schedules = schedules
        self._overview = overview
        self._prices = prices
        self._max_streams = max_streams
        self._change = 0
        self._moved = asyncio.Event()
        self._shared = SharedAnswers[list[Encoded]](_size_bytes, MAX_SHARED_BYTES)
        self._ends = SharedAnswers[int](lambda _: BYTES_AN_ANSWER, MAX_SHARED_BYTES)
        self.num_streams = 0

    async def run(self, listener: NudgeListener, poll_s: float, tell: Callable[[Exception], None]) -> None:
        """Notice changes until cancelled. A database that fails is told of and asked again."""
        while True:
            await listener.wait(poll_s)
            if self.num_streams == 0:
                continue
            try:
                await self.look()
            except Exception as error:
                tell(error)

    async def look(self) -> int:
        """The newest change; wakes all streams if anything was written, and forgets what was shared before."""
        change = await self._store.change()
        if change != self._change:
            self._change = change
            self._shared.clear()
            self._ends.clear()
            moved, self._moved = self._moved, asyncio.Event()
            moved.set()
        return change

    async def follow(self, topics: tuple[Topic, ...], after: int | None) -> AsyncGenerator[bytes]:
        """Frames of Server-Sent Events, for ever: what changed after ``after``, and heartbeats.

        Without ``after`` it begins now: the present state of the jobs and the cluster that are named, the
        newest timeline row, no points, and an empty text with the place in the log. Call ``check`` before.
        """
        self.num_streams += 1
        try:
            # Streams that come and go between two nudges would be given, and leave, answers of long ago.
            now = await self.look()
            yield b"retry: 2000\n\n"
            if after is None or after > now:
                # A number from the future comes from a database that was replaced.
                for frame in frames(await self._present(topics, now)):
                    yield frame
                after = now
            async with contextlib.aclosing(self._later(topics, after)) as later:
                async for frame in later:
                    yield frame
        finally:
            self.num_streams -= 1

    async def check(self, topics: tuple[Topic, ...]) -> None:
        """Raises TooManyError, and NotFoundError for a topic of a job or a sweep that is not there."""
        if self.num_streams >= self._max_streams:
            raise TooManyError(f"{self.num_streams} event streams are open, and no more are allowed; close one")
        for of in {topic.of for topic in topics if topic.of}:
            if SWEEP_ID.fullmatch(of):
                if await self._sweeps.sweep(of) is None:
                    raise NotFoundError(f"there is no sweep {of!r}; GET /api/v1/sweeps lists them")
            elif await self._store.job(of) is None:
                raise NotFoundError(f"there is no job {of!r}; GET /api/v1/jobs lists them")

    async def _later(self, topics: tuple[Topic, ...], after: int) -> AsyncGenerator[bytes]:
        while True:
            moved, upto = self._moved, self._change
            while after < upto:
                end = await self._batch_end(topics, after, upto)
                for frame in frames(await self._batch(topics, after, end)):
                    yield frame
                after = end
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await moved.wait()
            except TimeoutError:
                yield HEARTBEAT

    async def _batch_end(self, topics: tuple[Topic, ...], after: int, upto: int) -> int:
        of = {kind: tuple(sorted(topic.of for topic in topics if topic.kind == kind)) for kind in OF_ONE}
        wanted = Following(
            metrics=of["metrics"],
            logs=of["logs"],
            timelines=of["job"],
            has_all_jobs=Topic("jobs") in topics,
            has_all_sweeps=Topic("sweeps") in topics,
            has_all_schedules=Topic("schedules") in topics,
        )
        return await self._ends.get((wanted, after, upto), lambda: self._store.batch_end(wanted, after, upto))

    async def _batch(self, topics: tuple[Topic, ...], after: int, upto: int) -> list[Encoded]:
        found: list[Encoded] = []
        for topic in topics:
            found += await self._shared.get((topic, after, upto), partial(self._events, topic, after, upto))
        return sorted(found, key=lambda event: event.changed)

    async def _events(self, topic: Topic, after: int, upto: int) -> list[Encoded]:
        job_id = topic.of
        match topic.kind:
            case "jobs":
                jobs = await self._store.jobs_changed(after, upto)
                return [_encoded(job.changed, "job", job_document(job, self._prices)) for job in jobs]
            case "sweeps":
                return await self._swept(await self._sweeps.changed(after, upto))
            case "sweep":
                sweep = await self._sweeps.sweep(topic.of)
                return await self._swept([sweep] if sweep is not None and after < sweep.changed <= upto else [])
            case "schedules":
                rows = await self._schedules.changed(after, upto)
                return [_encoded(row.changed, "schedule", schedule_document(row)) for row in rows]
            case "job":
                return await self._of_job(job_id, after, upto)
            case "metrics":
                return await self._points(job_id, after, upto)
            case "logs":
                return await self._logs(job_id, after, upto)
            case _:
                return await self._cluster(after, upto)

    async def _of_job(self, job_id: str, after: int, upto: int) -> list[Encoded]:
        rows = await self._store.timeline_changed(job_id, after, upto)
        events = [_encoded(r.changed, "timeline", {"job_id": job_id, **timeline_document(r)}) for r in rows]
        job = await self._store.job(job_id)
        if job is not None and after < job.changed <= upto:
            events.append(_encoded(job.changed, "job", job_document(job, self._prices)))
        return events

    async def _points(self, job_id: str, after: int, upto: int) -> list[Encoded]:
        by_change: dict[int, list[Document]] = {}
        for point in await self._store.points_changed(job_id, after, upto):
            by_change.setdefault(point.changed, []).append(point_document(point))
        return [
            _encoded(changed, "metrics", {"job_id": job_id, "points": points}) for changed, points in by_change.items()
        ]

    async def _logs(self, job_id: str, after: int, upto: int) -> list[Encoded]:
        return [
            _encoded(
                piece.changed,
                "log",
                {
                    "job_id": job_id,
                    "attempt": piece.attempt,
                    "worker_id": piece.worker_id,
                    "rank": piece.rank,
                    "text": piece.data.decode("utf-8", errors="replace"),
                    "next_offset": piece.end,
                },
            )
            for piece in await self._store.logs_changed(job_id, after, upto)
        ]

    async def _swept(self, rows: Sequence[SweepRow], at: int | None = None) -> list[Encoded]:
        standings = await self._sweeps.standings(rows)
        return [_encoded(at or row.changed, "sweep", sweep_document(row, standings[row.id])) for row in rows]

    async def _cluster(self, after: int, upto: int) -> list[Encoded]:
        stored = await self._store.cluster()
        if stored is None or not after < stored.changed <= upto:
            return []
        return [_encoded(stored.changed, "cluster", await self._overview.cluster())]

    async def _present(self, topics: tuple[Topic, ...], now: int) -> list[Encoded]:
        """One event of each kind that a topic has, so that a page that was rendered a moment ago misses nothing."""
        found = []
        for topic in topics:
            job_id = topic.of
            match topic.kind:
                case "job":
                    rows = await self._store.timeline_tail(job_id, 1)
                    found += [_encoded(now, "timeline", {"job_id": job_id, **timeline_document(r)}) for r in rows]
                    if (job := await self._store.job(job_id)) is not None:
                        found.append(_encoded(now, "job", job_document(job, self._prices)))
                case "metrics":
                    found.append(_encoded(now, "metrics", {"job_id": job_id, "points": []}))
                case "logs":
                    empty = {"attempt": 0, "worker_id": "", "rank": None, "text": ""}
                    end = await self._store.log_size(job_id)
                    found.append(_encoded(now, "log", {"job_id": job_id, **empty, "next_offset": end}))
                case "sweep":
                    if (sweep := await self._sweeps.sweep(topic.of)) is not None:
                        found += await self._swept([sweep], at=now)
                case "cluster":
                    found.append(_encoded(now, "cluster", await self._overview.cluster()))
        return found


def _encoded(changed: int, name: str, document: Document) -> Encoded:
    data = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return Encoded(changed, f"event: {name}\ndata: {data}\n".encode())


def _size_bytes(events: Sequence[Encoded]) -> int:
    return BYTES_AN_ANSWER + sum(BYTES_AN_EVENT + len(event.data) for event in events)


def frames(events: Sequence[Encoded]) -> list[bytes]:
    """Events in order as frames; only the last of one change has an id, so that a cut between them loses none."""
    found = []
    for n, event in enumerate(events):
        is_last = n + 1 == len(events) or events[n + 1].changed != event.changed
        found.append(event.data + (f"id: {event.changed}\n\n".encode() if is_last else b"\n"))
    return found


def read_last_id(text: str | None) -> int | None:
    """The number of ``Last-Event-ID``; None without one. Raises BadRequestError."""
    if text is None or not text.strip():
        return None
    with contextlib.suppress(ValueError):
        if text.isascii() and 0 <= (number := int(text)) < 2**63:
            return number
    raise BadRequestError(f"Last-Event-ID {text[:40]!r} is not an id of this stream; leave it out to begin now")
