"""What rounds cost each rank over time: bounded rows of a job, stored by (begin, rank, attempt, worker)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, RowMapping, bindparam, delete, func, insert, select

from service.rank_history import MAX_TIMES, AttemptSpan, thinned
from service.store.schema import ranks
from service.store.statements import having
from workers.measures import RankSpan

_SINCE = select(ranks).where(*having(ranks, "job_id", "attempt"), ranks.c.begin >= bindparam("since"))
_NUM_TIMES = select(func.count(ranks.c.begin.distinct())).where(*having(ranks, "job_id"))


def store_spans(conn: Connection, job_id: str, attempt: int, spans: Sequence[RankSpan]) -> None:
    """Insert spans; of two under one key the one with more rounds stays. Too many are thinned out."""
    if not spans:
        return
    place = (ranks.c.job_id == job_id, ranks.c.attempt == attempt)
    since = min(span.begin for span in spans)
    rows = conn.execute(_SINCE, {"of_job_id": job_id, "of_attempt": attempt, "since": since})
    stored = {each.span.key: each.span.num_rounds for each in map(_span_of, rows.mappings())}
    fresh = [span for span in spans if span.num_rounds > stored.get(span.key, 0)]
    for span in (span for span in fresh if span.key in stored):
        of_span = (ranks.c.worker_id == span.worker_id, ranks.c.rank == span.rank, ranks.c.begin == span.begin)
        conn.execute(delete(ranks).where(*place, *of_span))
    if fresh:
        conn.execute(insert(ranks), [_row(job_id, AttemptSpan(attempt=attempt, span=span)) for span in fresh])
    if any(span.key not in stored for span in fresh):
        _bound(conn, job_id)


def _bound(conn: Connection, job_id: str) -> None:
    if conn.execute(_NUM_TIMES, {"of_job_id": job_id}).scalar_one() > MAX_TIMES:
        kept = thinned(spans_of(conn, job_id))
        conn.execute(delete(ranks).where(ranks.c.job_id == job_id))
        conn.execute(insert(ranks), [_row(job_id, each) for each in kept])


def spans_of(conn: Connection, job_id: str) -> list[AttemptSpan]:
    """All that is kept of a job, by growing time."""
    found = conn.execute(select(ranks).where(ranks.c.job_id == job_id).order_by(ranks.c.begin, ranks.c.rank))
    return [_span_of(row) for row in found.mappings()]


def _row(job_id: str, each: AttemptSpan) -> dict[str, Any]:
    return {"job_id": job_id, "attempt": each.attempt, **asdict(each.span)}


def _span_of(row: RowMapping) -> AttemptSpan:
    values = {name: row[name] for name in RankSpan.__dataclass_fields__}
    return AttemptSpan(attempt=row["attempt"], span=RankSpan(**values))
