"""Jobs as users see and command them: desired state goes in here, everything is read from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from sqlalchemy import Connection, func, insert, select

from service.ids import IdSource
from service.records import EventRow, JobFilter, JobRow, ListPart, Scale, spec_text
from service.states import ENDED_STATES, JobState, Move
from service.store.bundles import Deleted
from service.store.configuration_tables import promotion_runs
from service.store.counting import num_by_state
from service.store.database import Database, Write
from service.store.deleting import delete_job
from service.store.job_lists import page_of
from service.store.keys import IdempotencyKey, KeySpentError, made_before, spend
from service.store.moves import add_event, fetch_job, move, update_guarded
from service.store.references import check_references
from service.store.rows import checkpoint_of, event_of, job_of
from service.store.schema import checkpoints, events, job_labels, jobs, trials
from service.store.statements import any_number
from workers.spec import JobSpec
from workers.status import RunGoal

_INSERT_JOB = insert(jobs)
_INSERT_LABELS = insert(job_labels)
_NEW_JOB: Mapping[str, object] = {
    **dict.fromkeys(jobs.c.keys()),
    **dict.fromkeys(("restart_after", "attempt", "term", "num_current", "num_desired", "samples", "saves"), 0),
    "state": JobState.QUEUED,
    "goal": RunGoal.RUN,
    "version": 1,
    "scale_actor": "user",
    "scale_reason": "",
    "eval_values": "{}",
    "observed": "{}",
    "worker_s": 0.0,
}
"""All columns of a job that nothing has happened to yet."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """``is_new`` is False for the repetition of an earlier submission."""

    job: JobRow
    is_new: bool


@dataclass(frozen=True, slots=True)
class Owner:
    """The sweep that a job was made for: as its trial ``number``, or for its promotion where that is None."""

    sweep_id: str
    number: int | None


class JobStore:
    """The API's side of jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ids = IdSource()

    async def submit(self, spec: JobSpec, key: IdempotencyKey | None = None) -> Submitted:
        """Insert a QUEUED job; durable when this returns.

        Raises UnknownReferenceError, KeyReusedError, KeySpentError; nothing is stored then.
        """

        def work(write: Write) -> Submitted:
            if key is not None and (earlier := _earlier(write, key)) is not None:
                return Submitted(earlier, is_new=False)
            check_references(write.conn, spec)
            job_id = self._ids.job_id(write.now_s)
            job = insert_job(write, job_id, spec)
            if key is not None:
                spend(write, key, job_id)
            return Submitted(job, is_new=True)

        return await self._database.write(work)

    async def check_references(self, spec: JobSpec) -> None:
        """Raises UnknownReferenceError, as ``submit`` would now."""

        def work(conn: Connection) -> None:
            check_references(conn, spec)

        await self._database.read(work)

    async def job(self, job_id: str) -> JobRow | None:
        """One job, or None."""
        return await self._database.read(lambda conn: fetch_job(conn, job_id))

    async def owner(self, job_id: str) -> Owner | None:
        """The sweep that looks after a job; None for a job of its own."""
        of_trial = select(trials.c.sweep_id, trials.c.number).where(trials.c.job_id == job_id)
        of_run = select(promotion_runs.c.sweep_id).where(promotion_runs.c.job_id == job_id)

        def work(conn: Connection) -> Owner | None:
            if (row := conn.execute(of_trial).one_or_none()) is not None:
                return Owner(row.sweep_id, row.number)
            sweep_id = conn.execute(of_run).scalar_one_or_none()
            return None if sweep_id is None else Owner(sweep_id, None)

        return await self._database.read(work)

    async def has_saved(self, job: JobRow) -> bool:
        """Whether a checkpoint is registered that the job goes on from."""
        texts = select(checkpoints.c.info).where(checkpoints.c.job_id == job.id)
        found = await self._database.read(lambda conn: conn.execute(texts).scalars().all())
        return any(checkpoint_of(text).attempt > job.restart_after for text in found)

    async def page(self, wanted: JobFilter, limit: int, before_id: str | None = None) -> ListPart[JobRow]:
        """At most ``limit`` jobs, newest first, those older than ``before_id``; fewer where their specs are large."""
        return await self._database.read(lambda conn: page_of(conn, wanted, limit, before_id))

    async def count_by_state(self) -> dict[JobState, int]:
        """How many jobs are in each state, those left out whose deletion has begun; states without any are 0."""
        return await self._database.read(num_by_state)

    async def num_unended(self) -> int:
        """How many jobs have not ended; also where an earlier service made the tables, which had fewer."""
        statement = select(func.count()).select_from(jobs).where(jobs.c.state.not_in(sorted(ENDED_STATES)))
        return await self._database.read(lambda conn: int(conn.execute(statement).scalar_one()))

    async def queue_before(self, job: JobRow, limit: int) -> tuple[list[JobRow], int]:
        """The first ``limit`` QUEUED jobs that have waited longer, the first in line first, and how many there are."""
        earlier = (jobs.c.queued_at < job.queued_at) | ((jobs.c.queued_at == job.queued_at) & (jobs.c.id < job.id))
        chosen = (jobs.c.state == JobState.QUEUED, earlier)
        first = select(jobs).where(*chosen).order_by(jobs.c.queued_at, jobs.c.id).limit(limit)

        def work(conn: Connection) -> tuple[list[JobRow], int]:
            number = int(conn.execute(select(func.count()).select_from(jobs).where(*chosen)).scalar_one())
            return [job_of(row) for row in conn.execute(first)], number

        return await self._database.read(work)

    async def command(self, job: JobRow, wanted: Move, *, is_fresh_start: bool = False) -> JobRow:
        """Carry out a user's command; ``is_fresh_start`` makes a retry ignore all earlier checkpoints.

        Raises StaleRowError when the job has moved since ``job`` was read, TransitionError.
        """
        columns: dict[str, object] = {"goal": wanted.goal, "explanation": None}
        if wanted.goal is RunGoal.RUN:
            columns["failure"] = None
        if is_fresh_start:
            columns.update(restart_after=job.attempt, samples=0, total_samples=None, loss=None, eval_values="{}")
            columns["settings"] = None
        return await self._database.write(lambda write: move(write, job, wanted.to, wanted.reason, columns))

    async def set_scale(self, job: JobRow, scale: Scale) -> JobRow:
        """Store the wished size, guarded by the row. Raises StaleRowError."""
        columns = {
            "min_workers": scale.min,
            "max_workers": scale.max,
            "pinned_workers": scale.pinned,
            "scale_actor": scale.actor,
            "scale_reason": scale.reason,
        }
        return await self._database.write(lambda write: update_guarded(write, job, columns))

    async def delete(self, job: JobRow) -> Deleted:
        """Remove an ended job and all its rows, guarded by the row; its files are the caller's to remove.

        Nobody finds the job from when that has begun; what a crash leaves of it the leader removes.
        Raises StaleRowError.
        """
        assert job.is_ended
        return await delete_job(self._database, job)

    async def events(self, job_id: str, after: int, limit: int) -> list[EventRow]:
        """State transitions with ``seq`` above ``after``, oldest first."""
        statement = select(events).where(events.c.job_id == job_id, events.c.seq > any_number(after))
        return await self._database.read(
            lambda conn: [event_of(row) for row in conn.execute(statement.order_by(events.c.seq).limit(limit))]
        )


def _earlier(write: Write, key: IdempotencyKey) -> JobRow | None:
    job_id = made_before(write, key)
    if job_id is None:
        return None
    job = fetch_job(write.conn, job_id)
    if job is None:
        raise KeySpentError(job_id)
    return job


def insert_job(write: Write, job_id: str, spec: JobSpec, until: int | None = None) -> JobRow:
    """A job that is QUEUED from now on, with the line ``until``; what its spec names was found to be there."""
    columns = {
        **_NEW_JOB,
        "id": job_id,
        "name": spec.name,
        "spec": spec_text(spec),
        "bundle_id": spec.bundle,
        "changed": write.change,
        "min_workers": spec.workers.min,
        "max_workers": spec.workers.max,
        "created_at": write.now_s,
        "queued_at": write.now_s,
        "until": until,
    }
    write.conn.execute(_INSERT_JOB, columns)
    if spec.labels:
        rows = [{"job_id": job_id, "key": key, "value": value} for key, value in spec.labels.items()]
        write.conn.execute(_INSERT_LABELS, rows)
    job = job_of(SimpleNamespace(**columns))
    add_event(write, job, None)
    return job
