"""The reconciler's side of the store: the only writer of what is. Implements ``ReconcilerStore``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, select, update

from service.records import BundleRow, ClusterView, Explanation, JobRow, Transition
from service.states import LIVE_STATES, PLACED_STATES, JobState
from service.store.database import Database, Write, superseded
from service.store.folding import (
    acknowledged,
    described,
    judged_exchange,
    log_limit,
    store_checkpoints,
    store_logs,
    store_records,
    store_timeline,
    unpriced,
)
from service.store.looks import Look, Looks
from service.store.moves import fetch_job, move
from service.store.port import StaleRowError
from service.store.progress import observed_columns
from service.store.ranks import store_spans
from service.store.rows import bundle_of, checkpoint_of, dumps, explanation_text, failure_text, job_of
from service.store.schema import bundles, checkpoints, installation, jobs
from service.store.statements import having
from workers.status import Acknowledged, CheckpointInfo, JobSnapshot

_FENCE = select(installation.c.fence)
_FOLD = update(jobs).where(*having(jobs, "id"))
_CHECKPOINTS = select(checkpoints.c.path, checkpoints.c.info).where(*having(checkpoints, "job_id"))
_WAITING = select(jobs).where(jobs.c.state == JobState.QUEUED).order_by(jobs.c.queued_at, jobs.c.id)
_FIRST_WAITING = _WAITING.limit(bindparam("at_most"))
_PLACED = select(jobs).where(jobs.c.state.in_(sorted(LIVE_STATES - {JobState.QUEUED})))


class ObservedStore:
    """See ``ReconcilerStore`` for what each method promises; the lease's part is in ``LeaseStore``."""

    def __init__(self, database: Database, monotonic_s: Callable[[], float]) -> None:
        self._database = database
        self._looks = Looks(monotonic_s)

    async def live_jobs(self, max_queued: int | None = None) -> list[JobRow]:
        """Jobs in LIVE_STATES, those that have waited longest first; of the QUEUED ones the first ``max_queued``."""
        return await self._database.read(lambda conn: fetch_live_jobs(conn, max_queued))

    async def num_queued(self) -> int:
        """How many jobs wait."""
        statement = select(func.count()).select_from(jobs).where(jobs.c.state == JobState.QUEUED)
        return await self._database.read(lambda conn: int(conn.execute(statement).scalar_one()))

    async def names(self, job_ids: Collection[str]) -> Mapping[str, str]:
        """The names of these jobs by id; those that are gone are left out."""
        statement = select(jobs.c.id, jobs.c.name).where(jobs.c.id.in_(job_ids))
        return await self._database.read(lambda conn: {row.id: row.name for row in conn.execute(statement)})

    async def job(self, job_id: str) -> JobRow | None:
        """One job, or None."""
        return await self._database.read(lambda conn: fetch_job(conn, job_id))

    async def job_ids(self) -> frozenset[str]:
        """Ids of all jobs."""
        return await self._database.read(lambda conn: frozenset(conn.execute(select(jobs.c.id)).scalars()))

    async def admit(self, job: JobRow, num_desired: int, fence: int) -> JobRow:
        """QUEUED to STARTING. Raises StaleRowError, TransitionError, FencedOutError."""

        def work(write: Write) -> JobRow:
            columns = {
                "attempt": job.attempt + 1,
                "term": 1,
                "num_desired": num_desired,
                "observed_at": write.now_s,
                # Until this attempt has a group, a report still tells of the steps of the one before.
                "observed": dumps({"last_racks": job.observed.get("last_racks", ())}),
                "explanation": None,
                "failure": None,
            }
            return move(write, job, JobState.STARTING, None, columns)

        return await self._database.write(work, fence)

    async def new_term(self, job: JobRow, fence: int) -> JobRow:
        """Count the next controller. Raises StaleRowError, FencedOutError."""
        return await self._database.write(
            lambda write: _update_attempt(write, job, {"term": job.term + 1}, jobs.c.term == job.term), fence
        )

    async def transition(self, job: JobRow, to: JobState, change: Transition, fence: int) -> JobRow:
        """One guarded move. Raises TransitionError, StaleRowError, FencedOutError."""
        columns: dict[str, Any] = {"explanation": explanation_text(change.explanation)}
        if change.failure is not None:
            columns["failure"] = failure_text(change.failure)
        moved = await self._database.write(lambda write: move(write, job, to, change.reason, columns), fence)
        if to not in PLACED_STATES:
            self._looks.note(job.id, None)
        return moved

    async def set_desired(self, job: JobRow, num_desired: int, fence: int) -> None:
        """Note the size steered to. Raises StaleRowError, FencedOutError."""
        if job.num_desired != num_desired:

            def work(write: Write) -> None:
                _update_attempt(write, job, {"num_desired": num_desired})

            await self._database.write(work, fence)

    async def set_explanations(self, told: Sequence[tuple[JobRow, Explanation | None]], fence: int) -> None:
        """Note why jobs wait. Raises FencedOutError."""
        news = [(job, explanation) for job, explanation in told if job.explanation != explanation]
        if not news:
            return

        def work(write: Write) -> None:
            for job, explanation in news:
                columns = {"explanation": explanation_text(explanation)}
                with contextlib.suppress(StaleRowError):
                    _update_attempt(write, job, columns, jobs.c.state == job.state)

        await self._database.write(work, fence)

    async def acknowledged(self, job_id: str, attempt: int, fence: int | None = None) -> Acknowledged:
        """What of this attempt is stored, with the rows that lack their cost, and the exchange that was judged last."""

        def work(conn: Connection) -> Acknowledged:
            if fence is not None and conn.execute(_FENCE).scalar_one() != fence:
                raise superseded(fence)
            stored = acknowledged(conn, job_id, attempt)
            return replace(stored, unpriced=unpriced(conn, job_id, attempt), exchange=judged_exchange(conn, job_id))

        return await self._database.read(work)

    async def fold(self, snapshot: JobSnapshot, fence: int) -> Acknowledged:
        """Store all that is new in the snapshot. Raises StaleRowError, FencedOutError."""
        job_id, attempt = snapshot.job_id, snapshot.attempt

        def work(write: Write) -> tuple[Acknowledged, Look | None]:
            job = fetch_job(write.conn, job_id)
            if job is None or (job.attempt, job.term) != (attempt, snapshot.term):
                seen = "gone" if job is None else f"at attempt {job.attempt}, term {job.term}"
                raise StaleRowError(f"snapshot of {job_id} attempt {attempt}, term {snapshot.term}: the job is {seen}")
            store_records(write, job_id, attempt, snapshot.records)
            told = snapshot.timeline
            if store_logs(write, snapshot):
                told = (*told, log_limit(snapshot, job.spec.batch.global_size, write.now_s))
            store_timeline(write, job_id, attempt, told)
            store_checkpoints(write, job_id, snapshot.checkpoints)
            store_spans(write.conn, job_id, attempt, snapshot.spans)
            look = self._looks.look(write.now_s)
            columns = observed_columns(job, snapshot, write.now_s, self._looks.passed_s(job, look))
            write.conn.execute(_FOLD, {**columns, "changed": write.change, "of_id": job_id})
            acked = replace(acknowledged(write.conn, job_id, attempt), answer=snapshot.number)
            return acked, look if job.state in PLACED_STATES else None

        stored, look = await self._database.write(work, fence)
        self._looks.note(job_id, look)
        return stored

    async def register_checkpoints(self, job_id: str, found: Sequence[CheckpointInfo], fence: int) -> None:
        """Make the list equal to ``found``. Raises FencedOutError; a job that is gone is passed over."""

        paths = [info.path for info in found]

        def is_known(conn: Connection) -> bool:
            known = conn.execute(_CHECKPOINTS, {"of_job_id": job_id})
            return {row.path: row.info for row in known} == {info.path: described(info) for info in found}

        def work(write: Write) -> None:
            if fetch_job(write.conn, job_id) is None:
                return
            write.conn.execute(
                delete(checkpoints).where(checkpoints.c.job_id == job_id, checkpoints.c.path.not_in(paths))
            )
            store_checkpoints(write, job_id, found)

        if not await self._database.read(is_known):
            await self._database.write(work, fence)

    async def checkpoints(self, job_id: str) -> list[CheckpointInfo]:
        """Registered checkpoints, oldest first."""

        def work(conn: Connection) -> list[CheckpointInfo]:
            found = conn.execute(select(checkpoints.c.info).where(checkpoints.c.job_id == job_id))
            return sorted((checkpoint_of(text) for text in found.scalars()), key=lambda info: info.order)

        return await self._database.read(work)

    async def bundle(self, bundle_id: str) -> BundleRow | None:
        """An uploaded bundle, or None."""

        def work(conn: Connection) -> BundleRow | None:
            row = conn.execute(select(bundles).where(bundles.c.id == bundle_id)).one_or_none()
            return None if row is None else bundle_of(row)

        return await self._database.read(work)

    async def put_cluster(self, view: ClusterView, fence: int) -> None:
        """Note what the cluster looks like. Raises FencedOutError."""
        document = asdict(view)
        for node in document["nodes"]:
            node.update(total=dict(node["total"]), free=dict(node["free"]))

        def work(write: Write) -> None:
            columns = {"cluster": dumps(document), "cluster_at": write.now_s, "cluster_changed": write.change}
            write.conn.execute(update(installation).values(**columns))

        await self._database.write(work, fence)


def fetch_live_jobs(conn: Connection, max_queued: int | None) -> list[JobRow]:
    """See ``ReconcilerStore.live_jobs``."""
    waiting = conn.execute(_WAITING) if max_queued is None else conn.execute(_FIRST_WAITING, {"at_most": max_queued})
    found = [job_of(row) for row in (*waiting, *conn.execute(_PLACED))]
    return sorted(found, key=lambda job: (job.queued_at, job.id))


def _update_attempt(write: Write, job: JobRow, columns: Mapping[str, Any], *guards: Any) -> JobRow:
    """Write columns that users do not set; guarded by the attempt, since a command in between does no harm."""
    statement = (
        update(jobs)
        .where(jobs.c.id == job.id, jobs.c.attempt == job.attempt, *guards)
        .values(**columns, changed=write.change)
        .returning(jobs)
    )
    row = write.conn.execute(statement).one_or_none()
    if row is None:
        raise StaleRowError(f"{job.id} is no longer in attempt {job.attempt}, term {job.term}, {job.state}")
    return job_of(row)
