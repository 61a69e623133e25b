"""Reading what jobs told: points, timeline, logs, and what changed since a given change."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, UnaryExpression, func, select

from service.picking import reader
from service.rank_history import AttemptSpan
from service.records import JobRow, LogPiece, Point, StoredCluster, TimelineEntry
from service.report import Moment, Near
from service.store.database import Database
from service.store.deleting import is_deleted
from service.store.list_parts import part_of
from service.store.moves import fetch_job
from service.store.near import first_with, points_near
from service.store.ranks import spans_of
from service.store.rows import cluster_of, job_of, log_of, timeline_of
from service.store.schema import installation, jobs, log_chunks, log_workers, points, schedules, sweeps, timeline
from service.store.statements import any_number, text_bytes
from service.store.stretches import joined, pieces_of
from service.store.sweeps import shown_bytes
from service.store.visible import in_parts, visible_parts
from service.stretches import Part, Stretch
from workers.plan import TimelineKind

MAX_POINTS_A_BATCH = 2000
MAX_LOG_CHUNKS_A_BATCH = 200
MAX_LOG_BYTES_A_BATCH = 2**20
MAX_TIMELINE_A_BATCH = 500
MAX_ROWS_A_BATCH = 200
MAX_ROW_BYTES_A_BATCH = 2**20
MAX_TIMELINE_LOOKED_AT = 20_000
MAX_ROUNDS_A_SELECT = 500

_PointRow: TypeAlias = Row[Any, Any, Any, Any, Any]
_POINT_COLUMNS = (points.c.round, points.c.step, points.c.time, points.c["values"], points.c.changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """What a reader of changes reads that may be much: of which jobs, and whether all rows of jobs or of others."""

    metrics: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()
    timelines: tuple[str, ...] = ()
    has_all_jobs: bool = False
    has_all_sweeps: bool = False
    has_all_schedules: bool = False


class TelemetryStore:
    """The read side of telemetry; pages, REST and streams use it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def points(self, job_id: str, since_step: int = 0, keys: frozenset[str] | None = None) -> list[Point]:
        """Points that count, with ``step`` of at least ``since_step``, by growing step; of ``keys``, if given."""

        def work(conn: Connection) -> Sequence[_PointRow]:
            parts = visible_parts(conn, job_id)
            if not parts:
                return ()
            found = conn.execute(
                select(*_POINT_COLUMNS)
                .where(points.c.job_id == job_id, points.c.step >= since_step, in_parts(parts))
                .order_by(points.c.attempt, points.c.lineage, points.c.round)
            )
            return found.all()

        rows = await self._database.read(work)
        # Long histories are a second of parsing; other requests go on meanwhile.
        return await asyncio.to_thread(_points_of, rows, keys)

    async def extent(self, job_id: str, since_step: int = 0) -> list[Part]:
        """Which rounds count, from the first on whose step is at least ``since_step``; without their points."""
        return await self._database.read(lambda conn: _extent(conn, job_id, since_step))

    async def stretches(
        self, job_id: str, parts: Sequence[Part], width: int, keys: frozenset[str] | None
    ) -> list[Stretch]:
        """These parts in stretches of ``width`` rounds (one of WIDTHS), in order; only of ``keys``, where given."""
        pieces = await self._database.read(lambda conn: pieces_of(conn, job_id, parts, width))
        return await asyncio.to_thread(joined, pieces, width, keys)

    async def points_at(
        self, job_id: str, parts: Sequence[Part], rounds: Sequence[int], keys: frozenset[str] | None = None
    ) -> list[Point]:
        """The points of these rounds, which grow, as far as they lie in the parts; values of ``keys``, where given."""

        def work(conn: Connection) -> list[_PointRow]:
            found: list[_PointRow] = []
            for part in parts:
                inside = rounds[bisect_left(rounds, part.first) : bisect_right(rounds, part.last)]
                for begin in range(0, len(inside), MAX_ROUNDS_A_SELECT):
                    chosen = points.c.round.in_(inside[begin : begin + MAX_ROUNDS_A_SELECT])
                    place = (points.c.attempt == part.attempt, points.c.lineage == part.lineage)
                    of_part = select(*_POINT_COLUMNS).where(points.c.job_id == job_id, *place, chosen)
                    found += conn.execute(of_part.order_by(points.c.round)).all()
            return found

        return await asyncio.to_thread(_points_of, await self._database.read(work), keys)

    async def near(self, job_id: str, moments: Mapping[int, Moment], limit: int) -> dict[int, Near]:
        """At most ``limit`` points a side of each moment, by the moments' keys."""

        def work(conn: Connection) -> dict[int, tuple[Sequence[_PointRow], Sequence[_PointRow]]]:
            parts = visible_parts(conn, job_id)
            return {key: points_near(conn, job_id, parts, moment, limit) for key, moment in moments.items()}

        found = await self._database.read(work)
        return {key: Near(_points_of(before), _points_of(after)) for key, (before, after) in found.items()}

    async def timeline(self, job_id: str, after: int, limit: int) -> list[TimelineEntry]:
        """At most ``limit`` rows with ``seq`` above ``after``, oldest first; fewer where their texts are large.

        None only where there are none.
        """
        later = select(timeline).where(timeline.c.job_id == job_id, timeline.c.seq > any_number(after))
        chosen = later.order_by(timeline.c.seq)

        def work(conn: Connection) -> list[TimelineEntry]:
            found = part_of(conn, chosen, text_bytes(timeline, conn.dialect.name), limit)
            return [timeline_of(row) for row in found.rows]

        return await self._database.read(work)

    async def timeline_tail(self, job_id: str, limit: int) -> list[TimelineEntry]:
        """The newest rows, newest first."""
        statement = select(timeline).where(timeline.c.job_id == job_id)

        def work(conn: Connection) -> list[TimelineEntry]:
            found = conn.execute(statement.order_by(timeline.c.seq.desc()).limit(limit))
            return [timeline_of(row) for row in found]

        return await self._database.read(work)

    async def timeline_newest(self, job_id: str, max_changes: int, max_checkpoints: int) -> list[TimelineEntry]:
        """The newest rows, newest first; checkpoints, of which there are many, take no place of other rows.

        Looked for among the newest MAX_TIMELINE_LOOKED_AT; the first one's ``seq`` tells how many there are.
        """
        of_job = timeline.c.job_id == job_id
        newest = select(func.max(timeline.c.seq)).where(of_job)
        is_checkpoint = timeline.c.kind == TimelineKind.CHECKPOINT

        def work(conn: Connection) -> list[TimelineEntry]:
            first = (conn.execute(newest).scalar_one() or 0) - MAX_TIMELINE_LOOKED_AT
            rows = select(timeline).where(of_job, timeline.c.seq > first).order_by(timeline.c.seq.desc())
            statements = (
                rows.where(~is_checkpoint).limit(max_changes),
                rows.where(is_checkpoint).limit(max_checkpoints),
            )
            return [timeline_of(row) for statement in statements for row in conn.execute(statement)]

        return sorted(await self._database.read(work), key=lambda entry: -entry.seq)

    async def limits(self, job_id: str, attempt: int) -> list[str]:
        """What an attempt no longer tells in full, or not as it was asked to, oldest first: a kind is told once."""
        of_attempt = (timeline.c.job_id == job_id, timeline.c.attempt == attempt, timeline.c.kind == TimelineKind.LIMIT)
        statement = select(timeline.c.reason).where(*of_attempt).order_by(timeline.c.seq)
        return await self._database.read(lambda conn: list(conn.execute(statement).scalars()))

    async def logs(self, job_id: str, rank: int | None, offset: int, max_bytes: int) -> list[LogPiece]:
        """Pieces that end after position ``offset``, up to the one with which they reach ``max_bytes``."""
        begin = select(func.coalesce(func.max(log_chunks.c.position), 0)).where(
            log_chunks.c.job_id == job_id, log_chunks.c.position <= offset
        )
        chosen = [*_of_rank(job_id, rank), log_chunks.c.position >= begin.scalar_subquery()]
        chosen.append(log_chunks.c.position + log_chunks.c.size_bytes > offset)
        found: list[LogPiece] = []
        while (room := max_bytes - sum(len(piece.data) for piece in found)) > 0:
            later = [] if not found else [log_chunks.c.position > found[-1].position]
            batch = await self._bounded_pieces([*chosen, *later], log_chunks.c.position.asc(), room)
            found += batch
            if len(batch) < MAX_LOG_CHUNKS_A_BATCH:
                break
        return found

    async def log_tail(self, job_id: str, rank: int | None, min_lines: int, max_bytes: int) -> list[LogPiece]:
        """The last pieces in order, with at least ``min_lines`` lines where there are so many within ``max_bytes``.

        The earliest of them may go beyond ``max_bytes``.
        """
        found: list[LogPiece] = []
        num_lines, room = 0, max_bytes
        while num_lines <= min_lines and room > 0:
            earlier = [] if not found else [log_chunks.c.position < found[-1].position]
            batch = await self._bounded_pieces([*_of_rank(job_id, rank), *earlier], log_chunks.c.position.desc(), room)
            found += batch
            num_lines += sum(piece.data.count(b"\n") for piece in batch)
            room -= sum(len(piece.data) for piece in batch)
            if len(batch) < MAX_LOG_CHUNKS_A_BATCH:
                break
        return found[::-1]

    async def _bounded_pieces(
        self, chosen: Sequence[Any], order: UnaryExpression[int], max_bytes: int
    ) -> list[LogPiece]:
        """Pieces in order up to the one that reaches ``max_bytes``; others are measured, and not read."""
        position = log_chunks.c.position
        measured = select(position, log_chunks.c.size_bytes).where(*chosen).order_by(order)

        def work(conn: Connection) -> list[LogPiece]:
            wanted: list[int] = []
            num_bytes = 0
            for at, size_bytes in conn.execute(measured.limit(MAX_LOG_CHUNKS_A_BATCH)):
                wanted.append(at)
                num_bytes += size_bytes
                if num_bytes >= max_bytes:
                    break
            if not wanted:
                return []
            inside = position.between(min(wanted), max(wanted))
            return [log_of(row) for row in conn.execute(select(log_chunks).where(*chosen, inside).order_by(order))]

        return await self._database.read(work)

    async def _log_pieces(self, statement: Select[Any]) -> list[LogPiece]:
        return await self._database.read(lambda conn: [log_of(row) for row in conn.execute(statement)])

    async def log_size(self, job_id: str) -> int:
        """The position after the last byte of the job's log."""
        last = select(func.max(log_chunks.c.position + log_chunks.c.size_bytes)).where(log_chunks.c.job_id == job_id)
        return await self._database.read(lambda conn: int(conn.execute(last).scalar_one() or 0))

    async def log_begin(self, job_id: str) -> int:
        """The position of the first byte that is still there; what was before it is left out for good."""
        first = select(func.min(log_chunks.c.position)).where(log_chunks.c.job_id == job_id)
        return await self._database.read(lambda conn: int(conn.execute(first).scalar_one() or 0))

    async def job(self, job_id: str) -> JobRow | None:
        """One job, or None."""
        return await self._database.read(lambda conn: fetch_job(conn, job_id))

    async def jobs_changed(self, after: int, upto: int) -> list[JobRow]:
        """Jobs last written in (``after``, ``upto``], in that order."""
        statement = select(jobs).where(jobs.c.changed > after, jobs.c.changed <= upto, ~is_deleted(jobs.c.id))
        return await self._database.read(
            lambda conn: [job_of(row) for row in conn.execute(statement.order_by(jobs.c.changed))]
        )

    async def timeline_changed(self, job_id: str, after: int, upto: int) -> list[TimelineEntry]:
        """Timeline rows written in (``after``, ``upto``], in the order of the changes."""
        chosen = (timeline.c.job_id == job_id, timeline.c.changed > after, timeline.c.changed <= upto)

        def work(conn: Connection) -> list[TimelineEntry]:
            found = conn.execute(select(timeline).where(*chosen).order_by(timeline.c.changed, timeline.c.seq))
            return [timeline_of(row) for row in found]

        return await self._database.read(work)

    async def points_changed(self, job_id: str, after: int, upto: int) -> list[Point]:
        """Points that count, written in (``after``, ``upto``], in the order of the changes."""

        def work(conn: Connection) -> list[Point]:
            parts = visible_parts(conn, job_id)
            if not parts:
                return []
            chosen = (points.c.job_id == job_id, points.c.changed > after, points.c.changed <= upto)
            found = conn.execute(
                select(*_POINT_COLUMNS).where(*chosen, in_parts(parts)).order_by(points.c.changed, points.c.round)
            )
            return _points_of(found.all())

        return await self._database.read(work)

    async def logs_changed(self, job_id: str, after: int, upto: int) -> list[LogPiece]:
        """Log pieces written in (``after``, ``upto``], in order."""
        chosen = (log_chunks.c.job_id == job_id, log_chunks.c.changed > after, log_chunks.c.changed <= upto)
        in_order = select(log_chunks).where(*chosen).order_by(log_chunks.c.changed, log_chunks.c.position)
        return await self._log_pieces(in_order)

    async def batch_end(self, wanted: Following, after: int, upto: int) -> int:
        """A change up to which a reader who is at ``after`` can be given everything in one bounded batch."""
        limits: list[tuple[Table, tuple[str, ...], int]] = [
            (points, wanted.metrics, MAX_POINTS_A_BATCH),
            (timeline, wanted.timelines, MAX_TIMELINE_A_BATCH),
        ]

        def work(conn: Connection) -> int:
            ends = [upto]
            for table, job_ids, limit in limits:
                if job_ids:
                    later = select(table.c.changed).where(table.c.job_id.in_(job_ids), table.c.changed > after)
                    end = conn.execute(later.order_by(table.c.changed).offset(limit).limit(1))
                    ends += [int(changed) for changed in end.scalars()]
            if wanted.logs:
                ends += _log_batch_end(conn, wanted.logs, after)
            for table, size_bytes in _whole(wanted, conn.dialect.name):
                ends += _row_batch_end(conn, table, size_bytes, after)
            return min(ends)

        return await self._database.read(work)

    async def rank_spans(self, job_id: str) -> list[AttemptSpan]:
        """What rounds cost each rank, by growing time."""
        return await self._database.read(lambda conn: spans_of(conn, job_id))

    async def cluster(self) -> StoredCluster | None:
        """The cluster as the reconciler saw it last; None before its first look."""
        return await self._database.read(lambda conn: cluster_of(conn.execute(select(installation)).one()))

    async def change(self) -> int:
        """The number of the last change."""
        return await self._database.change()


def _log_batch_end(conn: Connection, job_ids: Sequence[str], after: int) -> list[int]:
    later = select(log_chunks.c.changed, log_chunks.c.size_bytes).where(
        log_chunks.c.job_id.in_(job_ids), log_chunks.c.changed > after
    )
    in_order = later.order_by(log_chunks.c.changed)
    return _end_within(conn, in_order, MAX_LOG_CHUNKS_A_BATCH, MAX_LOG_BYTES_A_BATCH)


def _row_batch_end(conn: Connection, table: Table, size_bytes: ColumnElement[int], after: int) -> list[int]:
    later = select(table.c.changed, size_bytes).where(table.c.changed > after)
    return _end_within(conn, later.order_by(table.c.changed), MAX_ROWS_A_BATCH, MAX_ROW_BYTES_A_BATCH)


def _whole(wanted: Following, dialect: str) -> list[tuple[Table, ColumnElement[int]]]:
    """Tables of which all rows are followed, with what a row's texts weigh."""
    found: list[tuple[Table, ColumnElement[int]]] = []
    if wanted.has_all_jobs:
        found.append((jobs, text_bytes(jobs, dialect)))
    if wanted.has_all_sweeps:
        found.append((sweeps, shown_bytes(dialect)))
    if wanted.has_all_schedules:
        found.append((schedules, text_bytes(schedules, dialect)))
    return found


def _end_within(conn: Connection, later: Select[int, int], max_rows: int, max_bytes: int) -> list[int]:
    """The change with which so many rows or bytes are reached; none where there are fewer.

    ``later`` gives changes in order, with the bytes of what was written in them.
    """
    num_bytes = 0
    for number, (changed, size_bytes) in enumerate(conn.execute(later.limit(max_rows + 1))):
        num_bytes += size_bytes
        if number == max_rows or num_bytes >= max_bytes:
            return [int(changed)]
    return []


def _of_rank(job_id: str, rank: int | None) -> list[Any]:
    chosen: list[Any] = [log_chunks.c.job_id == job_id]
    if rank is not None:
        wanted = any_number(rank)
        # What a worker wrote before it had a rank counts for the rank that it got.
        later_ranked = select(log_workers.c.worker_id).where(
            log_workers.c.job_id == job_id,
            log_workers.c.attempt == log_chunks.c.attempt,
            log_workers.c.worker_id == log_chunks.c.worker_id,
            log_workers.c.rank == wanted,
        )
        chosen.append((log_chunks.c.rank == wanted) | (log_chunks.c.rank.is_(None) & later_ranked.exists()))
    return chosen


def _extent(conn: Connection, job_id: str, since_step: int) -> list[Part]:
    """Steps grow along the parts, and in each with its rounds."""
    parts = visible_parts(conn, job_id)
    for n, part in enumerate(parts):
        first = first_with(conn, job_id, part, points.c.step, since_step)
        if first is not None:
            is_begin = part.is_begin and first == part.first
            return [replace(part, first=first, is_begin=is_begin), *parts[n + 1 :]]
    return []


def _points_of(rows: Sequence[_PointRow], keys: frozenset[str] | None = None) -> list[Point]:
    read = reader(keys)
    return [Point(at, step, time, read(values), changed) for at, step, time, values, changed in rows]
