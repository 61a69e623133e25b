"""What jobs told: metrics, timeline, logs, explanations and comparisons; use cases without HTTP or SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import inf

from service.avoidance import avoided
from service.batching import reasons
from service.compare import MAX_COMPARED, MAX_SPEC_CHARS, compare
from service.documents import Document, explanation_document, point_document, timeline_document
from service.downsample import chosen_rounds, downsample
from service.errors import BadRequestError, InvalidError
from service.explain import Circumstances, explain
from service.jobs import Jobs
from service.logs import Kept, LogText, log_text, tail_text
from service.racks import racks_of
from service.rank_history import AttemptSpan
from service.records import JobFilter, JobRow, Point
from service.report import NUM_POINTS, Moment, asked_section, is_asked, is_judged, moment_of, sections
from service.states import PLACED_STATES, JobState
from service.store.jobs import JobStore
from service.store.nodes import NodeStore
from service.store.telemetry import TelemetryStore
from service.stretches import width_for
from service.timeline_words import sentence
from service.words import plural
from workers.errors import FieldProblem

DEFAULT_POINTS = 1000
MAX_POINTS = 10_000
MAX_WHOLE_ROUNDS = 4000
"""A history of so many rounds, or as many as points are asked for, is read whole; a longer one by its roll-ups."""
MIN_STRETCHES = 64
MANY_KEYS = 5
"""What "all keys" counts as: most of them peak together."""
MAX_TIMELINE_ROWS = 10_000
MAX_NEWEST_CHANGES = 400
MAX_NEWEST_CHECKPOINTS = 100
MAX_JUDGED_CHANGES = 100
_LAST = -1
"""In place of a row's number: the end of what was told."""

MAX_EXPLAINING_ROWS = 50
MAX_LOG_BYTES = 1_000_000
MAX_TAIL_LINES = 100_000
MAX_NAMED_JOBS = 5
MAX_PLACED_JOBS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsQuery:
    """Which telemetry: ``keys`` None means all there is; ``since_step`` is the first step wanted."""

    keys: tuple[str, ...] | None = None
    since_step: int = 0
    max_points: int = DEFAULT_POINTS

    @property
    def wanted(self) -> frozenset[str] | None:
        """``keys`` as a set."""
        return None if self.keys is None else frozenset(self.keys)

    @property
    def limit(self) -> int:
        """How many points the answer has at most."""
        return max(2, min(self.max_points, MAX_POINTS))

    @property
    def num_stretches(self) -> int:
        """As many as can matter: each may give two points a series."""
        num_keys = MANY_KEYS if self.keys is None else len(self.keys)
        return max(MIN_STRETCHES, 2 * self.limit // (1 + num_keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """Which part of a log: of one rank or all; the last ``tail`` lines, or from ``offset`` on."""

    rank: int | None = None
    tail: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestTimeline:
    """The newest rows of a timeline, oldest first, of ``num_rows`` that there are."""

    rows: Sequence[Document]
    num_rows: int


class Telemetry:
    """Reads only; works while the cluster is down."""

    def __init__(
        self, jobs: Jobs, rows: JobStore, nodes: NodeStore, store: TelemetryStore, clock: Callable[[], float]
    ) -> None:
        self._jobs = jobs
        self._rows = rows
        self._nodes = nodes
        self._store = store
        self._clock = clock

    async def metrics(self, job_id: str, query: MetricsQuery) -> Document:
        """``{keys, points}``, at most ``max_points`` points. Raises NotFoundError.

        All points, where so many are allowed; else those at which a series is least or greatest in a stretch,
        of a long history found through its roll-ups.
        """
        await self._jobs.get(job_id)
        parts = await self._store.extent(job_id, query.since_step)
        num_rounds = sum(part.last - part.first + 1 for part in parts)
        if num_rounds <= max(query.limit, MAX_WHOLE_ROUNDS):
            points = await self._store.points(job_id, query.since_step, query.wanted)
            return await asyncio.to_thread(_of_points, points, query)
        width = width_for(num_rounds, query.num_stretches)
        stretches = await self._store.stretches(job_id, parts, width, query.wanted)
        rounds = await asyncio.to_thread(chosen_rounds, stretches, query.limit)
        points = await self._store.points_at(job_id, parts, rounds, query.wanted)
        there = {key for stretch in stretches for key in stretch}
        return await asyncio.to_thread(_document, points, there, query.keys)

    async def timeline(self, job_id: str, after: int = 0) -> list[Document]:
        """Rows after ``after``, oldest first; an answer has a limit: ask until there are none. Raises NotFoundError."""
        await self._jobs.get(job_id)
        return [timeline_document(row) for row in await self._store.timeline(job_id, after, MAX_TIMELINE_ROWS)]

    async def newest_timeline(self, job_id: str) -> NewestTimeline:
        """What a page shows, however long the timeline is. Raises NotFoundError."""
        await self._jobs.get(job_id)
        found = await self._store.timeline_newest(job_id, MAX_NEWEST_CHANGES, MAX_NEWEST_CHECKPOINTS)
        return NewestTimeline(
            rows=[timeline_document(row) for row in reversed(found)], num_rows=found[0].seq if found else 0
        )

    async def report(self, job_id: str) -> Document:
        """``{sections}``: what the newest changes did to the job's throughput, and the exchange that it asks for.

        Raises NotFoundError.
        """
        job = await self._jobs.get(job_id)
        rows = (await self._store.timeline_newest(job_id, MAX_NEWEST_CHANGES, 1))[::-1]
        judged = [row for row in rows if is_judged(row)][-MAX_JUDGED_CHANGES:]
        since = [row for row in rows if judged and row.seq >= judged[0].seq]  # with what changes were judged to bring
        moments = {row.seq: moment_of(row, job.spec.batch.global_size) for row in judged}
        if is_asked(job.spec.exchange):
            moments[_LAST] = Moment(time=inf)
        near = await self._store.near(job_id, moments, NUM_POINTS)
        asked = None
        if _LAST in near:
            asked = asked_section(job.spec.exchange, near.pop(_LAST).before, racks_of(job.observed))
        return {"sections": [*([] if asked is None else [asked]), *sections(since, near)]}

    async def logs(self, job_id: str, query: LogQuery) -> LogText:
        """Log text and where to go on. Raises NotFoundError, BadRequestError."""
        job = await self._jobs.get(job_id)
        if query.tail is not None and query.offset is not None:
            raise BadRequestError("tail and offset exclude each other; give one of them")
        has_names = query.rank is None and job.scale.max > 1
        if query.tail is not None:
            end = await self._store.log_size(job_id)
            pieces = await self._store.log_tail(job_id, query.rank, query.tail, MAX_LOG_BYTES)
            kept = Kept(await self._store.log_begin(job_id), end)
            return tail_text(pieces, min(query.tail, MAX_TAIL_LINES), kept, has_names=has_names)
        offset = query.offset or 0
        pieces = await self._store.logs(job_id, query.rank, offset, MAX_LOG_BYTES)
        # Asked after the pieces: what goes in between is not told to be missing of what they still have.
        return log_text(pieces, offset, await self._store.log_begin(job_id), has_names=has_names)

    async def explain(self, job_id: str) -> Document:
        """``{summary, details, remedy}``. Raises NotFoundError."""
        job = await self._jobs.get(job_id)
        before: Sequence[JobRow] = ()
        num_before = 0
        placed: Sequence[JobRow] = ()
        if job.state is JobState.QUEUED:
            before, num_before = await self._rows.queue_before(job, MAX_NAMED_JOBS)
            found = await self._rows.page(JobFilter(states=PLACED_STATES), MAX_PLACED_JOBS)
            # Of some of those who have room nothing follows about when there will be enough.
            placed = () if found.has_more else found.rows
        cluster, marks = await self._store.cluster(), await self._nodes.node_marks()
        around = Circumstances(
            before=before,
            num_before=num_before,
            cluster=cluster,
            now_s=self._clock(),
            shunned=() if cluster is None else avoided(cluster.view.nodes, marks),
            placed=placed,
            batch_reasons=await self._batch_reasons(job),
            limits=await self._store.limits(job_id, job.attempt),
        )
        return explanation_document(explain(job, around))

    async def _batch_reasons(self, job: JobRow) -> list[str]:
        if job.state is not JobState.RUNNING:
            return []
        rows = await self._store.timeline_newest(job.id, MAX_EXPLAINING_ROWS, 1)
        documents = [timeline_document(row) for row in reversed(rows)]
        return [f"{sentence(row)}." for row in reasons(documents)]

    async def rank_spans(self, job_id: str) -> list[AttemptSpan]:
        """What rounds cost each rank, by growing time. Raises NotFoundError."""
        await self._jobs.get(job_id)
        return await self._store.rank_spans(job_id)

    async def compare(self, job_ids: Sequence[str], query: MetricsQuery) -> Document:
        """``{keys, differences, series}``, at most MAX_POINTS points in all. Raises NotFoundError, InvalidError."""
        jobs = await self._compared(list(dict.fromkeys(job_ids)))
        of_each = replace(query, max_points=min(query.max_points, MAX_POINTS // len(jobs)))
        series = [await self.metrics(job.id, of_each) for job in jobs]
        return await asyncio.to_thread(compare, jobs, series)

    async def _compared(self, job_ids: Sequence[str]) -> list[JobRow]:
        if not 1 <= len(job_ids) <= MAX_COMPARED:
            raise _refused_jobs(f"{len(job_ids)} jobs are named; name 1 to {MAX_COMPARED}, such as jobs=ID,ID")
        jobs: list[JobRow] = []
        num_chars = 0
        for job_id in job_ids:
            jobs.append(await self._jobs.get(job_id))
            num_chars += len(jobs[-1].spec_json)
            if num_chars > MAX_SPEC_CHARS:
                told = f"the specs of the first {plural(len(jobs), 'job')} have {num_chars:,} characters"
                raise _refused_jobs(f"{told}; at most {MAX_SPEC_CHARS:,} are compared, so name fewer jobs")
        return jobs


def _refused_jobs(told: str) -> InvalidError:
    return InvalidError("a parameter is refused", [FieldProblem("/query/jobs", told)])


def _of_points(points: Sequence[Point], query: MetricsQuery) -> Document:
    there = {key for point in points for key in point.values}
    if query.keys is not None:
        points = [point for point in points if point.values]
    return _document(downsample(points, there, query.limit), there, query.keys)


def _document(points: Sequence[Point], there: Collection[str], asked: Sequence[str] | None) -> Document:
    keys = sorted(there) if asked is None else [key for key in dict.fromkeys(asked) if key in there]
    shown = None if asked is None else frozenset(keys)
    return {"keys": keys, "points": [point_document(point, shown) for point in points]}
