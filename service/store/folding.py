"""Storing what a snapshot brings: records, logs, timeline and checkpoints by their natural keys."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Table, bindparam, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from service.store.database import Write
from service.store.rows import clean, dumps, timeline_row_of
from service.store.schema import checkpoints, jobs, lineages, log_chunks, log_workers, points, timeline
from service.store.statements import having
from service.store.stretches import LineageKey, roll_up
from service.store.visible import Counted, counted_before, visible_parts
from workers.plan import TimelineKind
from workers.status import (
    Acknowledged,
    CheckpointInfo,
    JobSnapshot,
    LogChunk,
    RoundRecord,
    RunPhase,
    TimelineRow,
)
from workers.telemetry_keys import PREFIXES_OF_CODE

MAX_LINE_BYTES = 16 * 1024
"""A line without an end is stored in pieces once it is longer."""

MAX_LOG_BYTES = 256 * 2**20
"""Of one job's log; the oldest pieces go when there is more."""

MAX_ACKNOWLEDGED_KEYS = 5000
MAX_UNPRICED = 64

_JUDGES_EXCHANGE = "communication"
"""The actor of ``communication: auto``."""

_OF_ATTEMPT = ("job_id", "attempt")

_LINEAGE = select(lineages).where(*having(lineages, *_OF_ATTEMPT, "lineage"))
_EXTEND_LINEAGE = update(lineages).where(*having(lineages, *_OF_ATTEMPT, "lineage"))
_LAST_LINEAGE = (
    select(lineages.c.lineage, lineages.c.last_round)
    .where(*having(lineages, *_OF_ATTEMPT))
    .order_by(lineages.c.lineage.desc())
    .limit(1)
)
_TIME_OF_ROUND = select(points.c.time).where(*having(points, *_OF_ATTEMPT, "lineage", "round"))
_LOG_SIZES = select(log_workers.c.worker_id, log_workers.c.size_bytes).where(*having(log_workers, *_OF_ATTEMPT))
_UNRANKED = select(log_workers.c.worker_id).where(*having(log_workers, *_OF_ATTEMPT), log_workers.c.rank.is_(None))
_RANK = update(log_workers).where(*having(log_workers, *_OF_ATTEMPT, "worker_id"))
_LOG_END = select(func.max(log_chunks.c.position + log_chunks.c.size_bytes)).where(*having(log_chunks, "job_id"))
_DROP_LOG = delete(log_chunks).where(*having(log_chunks, "job_id"), log_chunks.c.position < bindparam("before"))
_COSTS = select(timeline.c.key, timeline.c.cost_s).where(
    *having(timeline, *_OF_ATTEMPT), timeline.c.key.in_(bindparam("keys", expanding=True))
)
_LAST_SEQ = select(func.coalesce(func.max(timeline.c.seq), 0)).where(*having(timeline, "job_id"))
_COMPLETE_ROW = update(timeline).where(*having(timeline, *_OF_ATTEMPT, "key"))
_NEWEST_KEYS = (
    select(timeline.c.key)
    .where(*having(timeline, *_OF_ATTEMPT))
    .order_by(timeline.c.seq.desc())
    .limit(bindparam("at_most"))
)
_UNPRICED = (
    select(timeline)
    .where(*having(timeline, *_OF_ATTEMPT), timeline.c.cost_s.is_(None))
    .order_by(timeline.c.seq.desc())
    .limit(bindparam("at_most"))
)
_END = select(timeline.c.key).where(*having(timeline, *_OF_ATTEMPT, "kind")).limit(1)
_LAST_VERDICT = (
    select(timeline).where(*having(timeline, "job_id", "kind", "actor")).order_by(timeline.c.seq.desc()).limit(1)
)
_RESTART_AFTER = select(jobs.c.restart_after).where(*having(jobs, "id"))
_PATHS = select(checkpoints.c.path).where(*having(checkpoints, "job_id"))


def store_records(write: Write, job_id: str, attempt: int, records: Sequence[RoundRecord]) -> None:
    """Insert records; where one is stored under the same key already, the higher generation stays."""
    by_lineage: dict[int, list[RoundRecord]] = defaultdict(list)
    for record in records:
        by_lineage[record.lineage].append(record)
    for lineage, found in sorted(by_lineage.items()):
        found.sort(key=lambda r: (r.round, r.generation))
        key = (job_id, attempt, lineage)
        last_before, last = _extend_lineage(write, key, found)
        steps = _steps(write.conn, job_id, found)
        rows = [_point(write, (job_id, attempt), *pair) for pair in zip(found, steps, strict=True)]
        write.conn.execute(_upsert_points(write.conn.dialect.name), rows)
        roll_up(write.conn, key, {last_before, *(record.round for record in found)}, last)


def _steps(conn: Connection, job_id: str, found: Sequence[RoundRecord]) -> Iterator[int]:
    """The optimizer steps up to the end of each record, which are sorted; skipped rounds have none.

    Rounds that are stored nowhere, as they were thinned out, count as many as the record that follows them.
    """
    base = last = counted_before(conn, job_id, found[0].round)
    for record in found:
        if record.round > last.round:
            base = last
            if record.round > base.round + 1:
                base = max(base, counted_before(conn, job_id, record.round), key=lambda c: c.round)
        num_rounds = record.round - base.round - record.is_skipped
        last = Counted(record.round, base.step + num_rounds * record.num_steps)
        yield last.step


def _extend_lineage(write: Write, key: LineageKey, found: Sequence[RoundRecord]) -> tuple[int, int]:
    """The last round that was stored before (the first one where there was none), and that which is now."""
    job_id, attempt, lineage = key
    place = {"of_job_id": job_id, "of_attempt": attempt, "of_lineage": lineage}
    row = write.conn.execute(_LINEAGE, place).one_or_none()
    first, last = found[0].round, found[-1].round
    if row is None:
        values = {"job_id": job_id, "attempt": attempt, "lineage": lineage, "first_round": first, "last_round": last}
        write.conn.execute(insert(lineages), values)
        return first, last
    last_before = row.last_round
    first, last = min(first, row.first_round), max(last, row.last_round)
    if (first, last) != (row.first_round, row.last_round):
        write.conn.execute(_EXTEND_LINEAGE, {"first_round": first, "last_round": last, **place})
    return last_before, last


def _point(write: Write, key: tuple[str, int], record: RoundRecord, step: int) -> dict[str, Any]:
    return {
        "job_id": key[0],
        "attempt": key[1],
        "lineage": record.lineage,
        "round": record.round,
        "generation": record.generation,
        "step": step,
        "cursor": record.cursor,
        "samples": record.samples,
        "time": record.time,
        "is_skipped": record.is_skipped,
        "changed": write.change,
        "values": dumps(_measured(record.values)),
    }


def _measured(values: Mapping[str, float]) -> dict[str, float | None]:
    """Without NaN and infinities: JSON has none, and on a chart they are gaps.

    Under names of the user's code they are None: there it is a result that the state was worth no number.
    """
    numbers = {name: value if math.isfinite(value) else None for name, value in values.items()}
    return {name: value for name, value in numbers.items() if value is not None or name.startswith(PREFIXES_OF_CODE)}


@functools.cache
def _upsert_points(dialect: str) -> Any:
    statement = _insert_into(dialect, points)
    new = statement.excluded
    kept = (*_OF_ATTEMPT, "lineage", "round")
    return statement.on_conflict_do_update(
        index_elements=[points.c[name] for name in kept],
        set_={column.name: new[column.name] for column in points.c if column.name not in kept},
        where=new.generation > points.c.generation,
    )


def _insert_into(dialect: str, table: Table) -> Any:
    """An INSERT that knows ``ON CONFLICT``; the two databases spell it alike, SQLAlchemy has it per dialect."""
    return (postgresql if dialect == "postgresql" else sqlite).insert(table)


def store_logs(write: Write, snapshot: JobSnapshot) -> bool:
    """Append log bytes; what is stored already is cut off, and an unfinished line waits for its end.

    A line is finished by force when it is long, or when its worker or the attempt is over. True where the
    job's oldest pieces went, as there is more than may be kept.
    """
    num_gone = _append_logs(write, snapshot) if snapshot.logs else 0
    _rank_logs(write, snapshot)
    return num_gone > 0


def log_limit(snapshot: JobSnapshot, global_size: int, now_s: float) -> TimelineRow:
    """The row that tells of it, once an attempt."""
    return TimelineRow(
        key="limit/stored_log",
        kind=TimelineKind.LIMIT,
        time=now_s,
        step=snapshot.cursor // global_size,
        actor="service",
        reason=(
            f"the log of the job is longer than the {MAX_LOG_BYTES // 2**20} MiB that are kept; "
            "its oldest lines are left out; print less"
        ),
        after={"cut": "stored_log"},
        cost_s=0.0,
        steps_lost=0,
    )


def _rank_logs(write: Write, snapshot: JobSnapshot) -> None:
    """What a worker wrote before it had a rank counts for the rank that it got, if it writes no more after, too."""
    ranks = {view.worker_id: view.rank for view in snapshot.workers if view.rank is not None}
    place = {"of_job_id": snapshot.job_id, "of_attempt": snapshot.attempt}
    for worker_id in write.conn.execute(_UNRANKED, place).scalars().all():
        if worker_id in ranks:
            write.conn.execute(_RANK, {"rank": ranks[worker_id], "of_worker_id": worker_id, **place})


def _append_logs(write: Write, snapshot: JobSnapshot) -> int:
    """The number of pieces that went, being the oldest."""
    job_id, attempt = snapshot.job_id, snapshot.attempt
    sizes = _log_sizes(write.conn, job_id, attempt)
    position = int(write.conn.execute(_LOG_END, {"of_job_id": job_id}).scalar_one() or 0)
    living = set() if snapshot.phase is RunPhase.ENDED else {view.worker_id for view in snapshot.workers}
    ranks: dict[str, int | None] = {}
    rows = []
    for chunk in sorted(snapshot.logs, key=lambda c: (c.time, c.worker_id, c.offset)):
        stored_bytes = sizes.get(chunk.worker_id, 0)
        offset, data = _new_part(chunk, stored_bytes, chunk.worker_id in living)
        if not data:
            continue
        if offset > stored_bytes:
            told = f"[{offset - stored_bytes} bytes of the log of worker {chunk.worker_id} are lost]\n".encode()
            rows.append(_log_row(write, (job_id, attempt), chunk, (stored_bytes, position, told)))
            position += len(told)
        sizes[chunk.worker_id] = offset + len(data)
        ranks[chunk.worker_id] = chunk.rank if chunk.rank is not None else ranks.get(chunk.worker_id)
        rows.append(_log_row(write, (job_id, attempt), chunk, (offset, position, data)))
        position += len(data)
    if not rows:
        return 0
    write.conn.execute(insert(log_chunks), rows)
    _note_log_workers(write, (job_id, attempt), sizes, ranks)
    return write.conn.execute(_DROP_LOG, {"of_job_id": job_id, "before": position - MAX_LOG_BYTES}).rowcount


def _new_part(chunk: LogChunk, stored_bytes: int, is_living: bool) -> tuple[int, bytes]:
    offset, data = chunk.offset, chunk.data
    if offset < stored_bytes:
        data, offset = data[stored_bytes - offset :], stored_bytes
    end = data.rfind(b"\n") + 1
    if is_living and len(data) - end < MAX_LINE_BYTES:
        data = data[:end]
    return offset, data


def _log_row(write: Write, key: tuple[str, int], chunk: LogChunk, part: tuple[int, int, bytes]) -> dict[str, Any]:
    offset, position, data = part
    return {
        "job_id": key[0],
        "attempt": key[1],
        "worker_id": chunk.worker_id,
        "offset": offset,
        "position": position,
        "size_bytes": len(data),
        "rank": chunk.rank,
        "time": chunk.time,
        "changed": write.change,
        "data": data,
    }


def _log_sizes(conn: Connection, job_id: str, attempt: int) -> dict[str, int]:
    found = conn.execute(_LOG_SIZES, {"of_job_id": job_id, "of_attempt": attempt})
    return {row.worker_id: row.size_bytes for row in found}


def _note_log_workers(
    write: Write, key: tuple[str, int], sizes: Mapping[str, int], ranks: Mapping[str, int | None]
) -> None:
    rows = [
        {"job_id": key[0], "attempt": key[1], "worker_id": worker, "rank": rank, "size_bytes": sizes[worker]}
        for worker, rank in ranks.items()
    ]
    write.conn.execute(_upsert_log_workers(write.conn.dialect.name), rows)


@functools.cache
def _upsert_log_workers(dialect: str) -> Any:
    statement = _insert_into(dialect, log_workers)
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=[log_workers.c.job_id, log_workers.c.attempt, log_workers.c.worker_id],
        set_={"size_bytes": new.size_bytes, "rank": func.coalesce(new.rank, log_workers.c.rank)},
    )


def store_timeline(write: Write, job_id: str, attempt: int, rows: Sequence[TimelineRow]) -> None:
    """Insert rows by key; one stored without ``cost_s`` is completed by a later one that has it."""
    if not rows:
        return
    place = {"of_job_id": job_id, "of_attempt": attempt}
    found = write.conn.execute(_COSTS, {**place, "keys": [row.key for row in rows]})
    stored = {row.key: row.cost_s for row in found}
    seq = int(write.conn.execute(_LAST_SEQ, {"of_job_id": job_id}).scalar_one())
    for row in rows:
        if row.key not in stored:
            seq += 1
            values = {"job_id": job_id, "attempt": attempt, "seq": seq, "changed": write.change}
            write.conn.execute(insert(timeline), {**values, **_timeline_values(row)})
        elif stored[row.key] is None and row.cost_s is not None:
            completed = {"changed": write.change, **_timeline_values(row)}
            write.conn.execute(_COMPLETE_ROW, {**completed, **place, "of_key": row.key})
        stored[row.key] = row.cost_s


def _timeline_values(row: TimelineRow) -> dict[str, Any]:
    return {
        "key": row.key,
        "kind": row.kind,
        "time": row.time,
        "step": row.step,
        "actor": clean(row.actor),
        "reason": clean(row.reason),
        "before": dumps(dict(row.before)),
        "after": dumps(dict(row.after)),
        "cost_s": row.cost_s,
        "steps_lost": row.steps_lost,
    }


def store_checkpoints(write: Write, job_id: str, found: Sequence[CheckpointInfo]) -> None:
    """Register checkpoints by path; the latest description stays."""
    if not found:
        return
    rows = [{"job_id": job_id, "path": info.path, "info": described(info)} for info in found]
    write.conn.execute(_upsert_checkpoints(write.conn.dialect.name), rows)


@functools.cache
def _upsert_checkpoints(dialect: str) -> Any:
    statement = _insert_into(dialect, checkpoints)
    return statement.on_conflict_do_update(
        index_elements=[checkpoints.c.job_id, checkpoints.c.path], set_={"info": statement.excluded.info}
    )


def described(info: CheckpointInfo) -> str:
    """As it is stored."""
    return dumps(checkpoint_values(info))


def checkpoint_values(info: CheckpointInfo) -> dict[str, Any]:
    """Its JSON document; a metric that is not finite counts as none."""
    metric = info.metric if info.metric is not None and math.isfinite(info.metric) else None
    return {**asdict(info), "metric": metric}


def acknowledged(conn: Connection, job_id: str, attempt: int) -> Acknowledged:
    """What of an attempt this transaction sees as stored."""
    place = {"of_job_id": job_id, "of_attempt": attempt}
    row = conn.execute(_LAST_LINEAGE, place).one_or_none()
    lineage, last_round = rounds = (0, 0) if row is None else (row.lineage, row.last_round)
    committed_at = conn.execute(_TIME_OF_ROUND, {**place, "of_lineage": lineage, "of_round": last_round})
    return Acknowledged(
        rounds=rounds,
        committed_at=committed_at.scalar_one_or_none(),
        **(_before(conn, job_id) if row is None and attempt > 1 else {}),
        log_offsets=_log_sizes(conn, job_id, attempt),
        checkpoints=frozenset(conn.execute(_PATHS, {"of_job_id": job_id}).scalars()),
        timeline=frozenset(conn.execute(_NEWEST_KEYS, {**place, "at_most": MAX_ACKNOWLEDGED_KEYS}).scalars()),
    )


def _before(conn: Connection, job_id: str) -> dict[str, Any]:
    """The last round that the next attempt would follow, had it been saved; none where that begins anew."""
    newest = visible_parts(conn, job_id)[-1:]
    restart_after = conn.execute(_RESTART_AFTER, {"of_id": job_id}).scalar_one_or_none() or 0
    if not newest or newest[0].attempt <= restart_after:
        return {}
    end = conn.execute(_END, {"of_job_id": job_id, "of_attempt": newest[0].attempt, "of_kind": TimelineKind.END})
    return {"before": newest[0].last, "is_before_least": end.first() is None}


def unpriced(conn: Connection, job_id: str, attempt: int) -> tuple[TimelineRow, ...]:
    """The newest rows of an attempt that are stored without their cost, oldest first."""
    found = conn.execute(_UNPRICED, {"of_job_id": job_id, "of_attempt": attempt, "at_most": MAX_UNPRICED})
    return tuple(reversed([timeline_row_of(row) for row in found]))


def judged_exchange(conn: Connection, job_id: str) -> str:
    """The exchange that the last verdict of ``communication: auto`` left in force; empty where there was none."""
    place = {"of_job_id": job_id, "of_kind": TimelineKind.PROBATION, "of_actor": _JUDGES_EXCHANGE}
    found = conn.execute(_LAST_VERDICT, place).one_or_none()
    if found is None:
        return ""
    row = timeline_row_of(found)
    return str((row.after if row.after["is_kept"] else row.before)["scheme"])
