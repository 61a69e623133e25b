"""One transition: a guarded UPDATE and its event, in the caller's transaction. The only code that sets ``state``."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from service.records import JobRow
from service.states import ENDED_STATES, PLACED_STATES, JobState, is_allowed
from service.store.database import Write
from service.store.deleting import is_deleted
from service.store.port import StaleRowError, TransitionError
from service.store.rows import job_of
from service.store.schema import events, jobs
from service.store.statements import having
from workers.errors import Reason

_FETCH_JOB = select(jobs).where(*having(jobs, "id"), ~is_deleted(jobs.c.id))
_SAME = (*having(jobs, "id", "state", "version"), ~is_deleted(jobs.c.id))
_UPDATE_GUARDED = update(jobs).where(*_SAME).returning(jobs)
_NEXT_SEQ = select(func.coalesce(func.max(events.c.seq), 0) + 1).where(events.c.job_id == bindparam("of_job"))
_APPEND_EVENT = insert(events).values(
    seq=_NEXT_SEQ.scalar_subquery(),
    **{name: bindparam(name) for name in ("job_id", "time", "attempt", "source", "target", "reason")},
)


def move(write: Write, job: JobRow, to: JobState, reason: Reason | None, values: dict[str, Any]) -> JobRow:
    """Move ``job`` to another state if it is still as the caller saw it; ``values`` are further columns.

    Raises TransitionError when the table has no such move, StaleRowError when the row has changed.
    """
    if not is_allowed(job.state, to):
        raise TransitionError(f"{job.id} is {job.state}; the table of states has no move from there to {to}")
    if (job.state, to) == (JobState.CANCELLING, JobState.CANCELLED):
        reason = job.reason or reason  # whoever tells of the end does not know who asked for it
    columns = {**_times(job, to, write.now_s), **values, "state": to, "reason": reason}
    moved = update_guarded(write, job, columns)
    add_event(write, moved, job.state)
    return moved


def update_guarded(write: Write, job: JobRow, columns: dict[str, Any]) -> JobRow:
    """Write columns if state and version are still those of ``job``; the row as it is then.

    Raises StaleRowError.
    """
    seen = {"of_id": job.id, "of_state": job.state, "of_version": job.version}
    written = {**columns, "version": job.version + 1, "changed": write.change}
    row = write.conn.execute(_UPDATE_GUARDED, {**written, **seen}).one_or_none()
    if row is None:
        raise StaleRowError(f"{job.id} is no longer {job.state} at version {job.version}; read it again")
    return job_of(row)


def add_event(write: Write, job: JobRow, source: JobState | None) -> None:
    """Append the event of the move that led to ``job``."""
    row = {
        "job_id": job.id,
        "of_job": job.id,
        "time": write.now_s,
        "attempt": job.attempt,
        "source": source,
        "target": job.state,
        "reason": job.reason,
    }
    write.conn.execute(_APPEND_EVENT, row)


def fetch_job(conn: Connection, job_id: str) -> JobRow | None:
    """The row as this transaction sees it."""
    row = conn.execute(_FETCH_JOB, {"of_id": job_id}).one_or_none()
    return None if row is None else job_of(row)


def _times(job: JobRow, to: JobState, now_s: float) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if to is JobState.QUEUED:
        columns.update(queued_at=now_s, finished_at=None)
    if to is JobState.RUNNING and job.started_at is None:
        columns["started_at"] = now_s
    if to in ENDED_STATES:
        columns["finished_at"] = now_s
    if to not in PLACED_STATES:
        columns.update(num_current=0, num_desired=0, samples_per_s=None)
    return columns
