"""Storing what a snapshot brings: records, logs, timeline and checkpoints by their natural keys."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Table, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from service.store.database import Write
from service.store.rows import clean, dumps, timeline_row_of
from service.store.schema import checkpoints, lineages, log_chunks, log_workers, points, timeline
from service.store.stretches import LineageKey, roll_up
from service.store.visible import Counted, counted_before
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

MAX_LINE_BYTES = 16 * 1024
"""A line without an end is stored in pieces once it is longer."""

MAX_LOG_BYTES = 256 * 2**20
"""Of one job's log; the oldest pieces go when there is more."""

MAX_ACKNOWLEDGED_KEYS = 5000
MAX_UNPRICED = 64


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
        _upsert_points(write.conn, rows)
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
    place = (lineages.c.job_id == job_id, lineages.c.attempt == attempt, lineages.c.lineage == lineage)
    row = write.conn.execute(select(lineages).where(*place)).one_or_none()
    first, last = found[0].round, found[-1].round
    if row is None:
        values = {"job_id": job_id, "attempt": attempt, "lineage": lineage, "first_round": first, "last_round": last}
        write.conn.execute(insert(lineages).values(values))
        return first, last
    last_before = row.last_round
    first, last = min(first, row.first_round), max(last, row.last_round)
    if (first, last) != (row.first_round, row.last_round):
        write.conn.execute(update(lineages).where(*place).values(first_round=first, last_round=last))
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
        "values": dumps(finite(record.values)),
    }


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Without NaN and infinities: JSON has none, and on a chart they are gaps."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _upsert_points(conn: Connection, rows: list[dict[str, Any]]) -> None:
    statement = _insert_into(conn, points)
    new = statement.excluded
    kept = ("job_id", "attempt", "lineage", "round")
    statement = statement.on_conflict_do_update(
        index_elements=[points.c[name] for name in kept],
        set_={column.name: new[column.name] for column in points.c if column.name not in kept},
        where=new.generation > points.c.generation,
    )
    conn.execute(statement, rows)


def _insert_into(conn: Connection, table: Table) -> Any:
    """An INSERT that knows ``ON CONFLICT``; the two databases spell it alike, SQLAlchemy has it per dialect."""
    return (postgresql if conn.dialect.name == "postgresql" else sqlite).insert(table)


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
    place = (log_workers.c.job_id == snapshot.job_id, log_workers.c.attempt == snapshot.attempt)
    unranked = select(log_workers.c.worker_id).where(*place, log_workers.c.rank.is_(None))
    for worker_id in write.conn.execute(unranked).scalars().all():
        if worker_id in ranks:
            ranked = update(log_workers).where(*place, log_workers.c.worker_id == worker_id)
            write.conn.execute(ranked.values(rank=ranks[worker_id]))


def _append_logs(write: Write, snapshot: JobSnapshot) -> int:
    """The number of pieces that went, being the oldest."""
    job_id, attempt = snapshot.job_id, snapshot.attempt
    sizes = _log_sizes(write.conn, job_id, attempt)
    last = select(func.max(log_chunks.c.position + log_chunks.c.size_bytes)).where(log_chunks.c.job_id == job_id)
    position = int(write.conn.execute(last).scalar_one() or 0)
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
    too_old = (log_chunks.c.job_id == job_id, log_chunks.c.position < position - MAX_LOG_BYTES)
    return write.conn.execute(delete(log_chunks).where(*too_old)).rowcount


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
    found = conn.execute(
        select(log_workers.c.worker_id, log_workers.c.size_bytes).where(
            log_workers.c.job_id == job_id, log_workers.c.attempt == attempt
        )
    )
    return {row.worker_id: row.size_bytes for row in found}


def _note_log_workers(
    write: Write, key: tuple[str, int], sizes: Mapping[str, int], ranks: Mapping[str, int | None]
) -> None:
    rows = [
        {"job_id": key[0], "attempt": key[1], "worker_id": worker, "rank": rank, "size_bytes": sizes[worker]}
        for worker, rank in ranks.items()
    ]
    statement = _insert_into(write.conn, log_workers)
    new = statement.excluded
    statement = statement.on_conflict_do_update(
        index_elements=[log_workers.c.job_id, log_workers.c.attempt, log_workers.c.worker_id],
        set_={"size_bytes": new.size_bytes, "rank": func.coalesce(new.rank, log_workers.c.rank)},
    )
    write.conn.execute(statement, rows)


def store_timeline(write: Write, job_id: str, attempt: int, rows: Sequence[TimelineRow]) -> None:
    """Insert rows by key; one stored without ``cost_s`` is completed by a later one that has it."""
    if not rows:
        return
    found = write.conn.execute(
        select(timeline.c.key, timeline.c.cost_s).where(
            timeline.c.job_id == job_id,
            timeline.c.attempt == attempt,
            timeline.c.key.in_([row.key for row in rows]),
        )
    )
    stored = {row.key: row.cost_s for row in found}
    last = select(func.coalesce(func.max(timeline.c.seq), 0)).where(timeline.c.job_id == job_id)
    seq = int(write.conn.execute(last).scalar_one())
    for row in rows:
        if row.key not in stored:
            seq += 1
            values = {"job_id": job_id, "attempt": attempt, "seq": seq, "changed": write.change}
            write.conn.execute(insert(timeline).values(**values, **_timeline_values(row)))
        elif stored[row.key] is None and row.cost_s is not None:
            place = (timeline.c.job_id == job_id, timeline.c.attempt == attempt, timeline.c.key == row.key)
            write.conn.execute(update(timeline).where(*place).values(changed=write.change, **_timeline_values(row)))
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
    statement = _insert_into(write.conn, checkpoints)
    statement = statement.on_conflict_do_update(
        index_elements=[checkpoints.c.job_id, checkpoints.c.path], set_={"info": statement.excluded.info}
    )
    rows = [{"job_id": job_id, "path": info.path, "info": described(info)} for info in found]
    write.conn.execute(statement, rows)


def described(info: CheckpointInfo) -> str:
    """As it is stored."""
    return dumps(checkpoint_values(info))


def checkpoint_values(info: CheckpointInfo) -> dict[str, Any]:
    """Its JSON document; a metric that is not finite counts as none."""
    metric = info.metric if info.metric is not None and math.isfinite(info.metric) else None
    return {**asdict(info), "metric": metric}


def acknowledged(conn: Connection, job_id: str, attempt: int) -> Acknowledged:
    """What of an attempt this transaction sees as stored."""
    last = conn.execute(
        select(lineages.c.lineage, lineages.c.last_round)
        .where(lineages.c.job_id == job_id, lineages.c.attempt == attempt)
        .order_by(lineages.c.lineage.desc())
        .limit(1)
    )
    row = last.one_or_none()
    rounds = (0, 0) if row is None else (row.lineage, row.last_round)
    paths = conn.execute(select(checkpoints.c.path).where(checkpoints.c.job_id == job_id))
    keys = conn.execute(
        select(timeline.c.key)
        .where(timeline.c.job_id == job_id, timeline.c.attempt == attempt)
        .order_by(timeline.c.seq.desc())
        .limit(MAX_ACKNOWLEDGED_KEYS)
    )
    return Acknowledged(
        rounds=rounds,
        committed_at=_committed_at(conn, (job_id, attempt, *rounds)),
        log_offsets=_log_sizes(conn, job_id, attempt),
        checkpoints=frozenset(paths.scalars()),
        timeline=frozenset(keys.scalars()),
    )


def _committed_at(conn: Connection, key: tuple[str, int, int, int]) -> float | None:
    columns = (points.c.job_id, points.c.attempt, points.c.lineage, points.c.round)
    found = conn.execute(select(points.c.time).where(*(c == v for c, v in zip(columns, key, strict=True))))
    return found.scalar_one_or_none()


def unpriced(conn: Connection, job_id: str, attempt: int) -> tuple[TimelineRow, ...]:
    """The newest rows of an attempt that are stored without their cost, oldest first."""
    found = conn.execute(
        select(timeline)
        .where(timeline.c.job_id == job_id, timeline.c.attempt == attempt, timeline.c.cost_s.is_(None))
        .order_by(timeline.c.seq.desc())
        .limit(MAX_UNPRICED)
    )
    return tuple(reversed([timeline_row_of(row) for row in found]))
