"""Deleting a job: first it is noted, and from then on nobody finds the job; then its many rows go in parts.

So no other writer waits for all of them, and whatever stops it half-way leaves a job that the leader removes.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Connection, Table, delete, func, insert, literal, select, tuple_, update

from service.records import JobRow
from service.store.bundles import Deleted, drop_bundle
from service.store.database import Database, Write
from service.store.deletion_table import deletions
from service.store.port import StaleRowError
from service.store.schema import jobs, metadata
from service.store.statements import having

Key: TypeAlias = tuple[Any, ...]
"""Of a row within its job."""

ROWS_A_PART = 5000

_OF_JOBS = [table for table in metadata.sorted_tables if any(key.references(jobs) for key in table.foreign_keys)]
"""Tables whose rows go with their job; its id comes first in their keys."""

MAX_FORGOTTEN = 500
"""Notes dropped in one look: what a statement may name is bounded."""

_HAS_ROW = select(literal(1)).where(jobs.c.id == deletions.c.job_id).exists()

# Whoever read the job before, to command it, has a version that is past then.
_TAKE = update(jobs).where(*having(jobs, "id", "state", "version")).values(version=jobs.c.version + 1)


async def delete_job(database: Database, job: JobRow) -> Deleted:
    """Remove an ended job and all its rows, guarded by the row. Raises StaleRowError; nothing is removed then."""
    await database.write(partial(_begin, job=job))
    return await finish(database, job.id)


def _begin(write: Write, job: JobRow) -> None:
    seen = {"of_id": job.id, "of_state": job.state, "of_version": job.version}
    if write.conn.execute(_TAKE.returning(jobs.c.id), seen).one_or_none() is None:
        raise StaleRowError(f"{job.id} has changed; read it again")
    write.conn.execute(insert(deletions).values(job_id=job.id, asked_at=write.now_s))


async def finish(database: Database, job_id: str) -> Deleted:
    """Remove what there is of a job whose deletion is noted; several may do so at once."""
    for table in _OF_JOBS:
        # Looked for by a reader, for whom nobody waits.
        ends = await database.read(partial(ends_of_parts, table=table, job_id=job_id))
        for begin, end in pairwise([None, *ends]):
            assert end is not None
            await database.write_quietly(partial(_delete_part, table=table, job_id=job_id, begin=begin, end=end))

    def work(write: Write) -> Deleted:
        gone = write.conn.execute(delete(jobs).where(jobs.c.id == job_id).returning(jobs.c.bundle_id))
        bundle_id = gone.scalar_one_or_none()
        return Deleted(None if bundle_id is None else drop_bundle(write, bundle_id))

    return await database.write(work)


def is_deleted(job_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """The condition that the deletion of a job is noted: its row, if there is still one, is for nobody to find."""
    return select(literal(1)).where(deletions.c.job_id == job_id).exists()


def ends_of_parts(conn: Connection, table: Table, job_id: str) -> list[Key]:
    """The keys before which parts of so many rows end, in order; all that comes after the last one is fewer."""
    first, *others = table.primary_key.columns
    number = func.row_number().over(order_by=others).label("number")
    rows = select(*others, number).where(first == job_id).subquery()
    names = [rows.c[column.name] for column in others]
    is_end = (rows.c.number > 1) & (rows.c.number % ROWS_A_PART == 1)
    return [tuple(row) for row in conn.execute(select(*names).where(is_end).order_by(*names))]


def _delete_part(conn: Connection, table: Table, job_id: str, begin: Key | None, end: Key) -> None:
    first, *others = table.primary_key.columns
    # PostgreSQL would walk over all that was deleted before if it were not told where that ended.
    is_after = [] if begin is None else [tuple_(*others) >= tuple_(*begin)]
    conn.execute(delete(table).where(first == job_id, *is_after, tuple_(*others) < tuple_(*end)))


class DeletionKeeping:
    """The reconciler's side of deletions; see ``ReconcilerStore`` for the promises."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def finish_deletions(self) -> None:
        """Remove the rows of jobs whose deletion was noted and not finished."""
        half_done = select(deletions.c.job_id).where(_HAS_ROW)
        for job_id in await self._database.read(lambda conn: conn.execute(half_done).scalars().all()):
            await finish(self._database, job_id)

    async def deleted_jobs(self) -> frozenset[str]:
        """Ids of jobs that were deleted, as long as they are noted."""
        return await self._database.read(lambda conn: frozenset(conn.execute(select(deletions.c.job_id)).scalars()))

    async def forget_deletions(self, keep_s: float, kept: Collection[str], fence: int) -> None:
        """Drop the notes of deletions that are done and older than ``keep_s``, but for those ``kept``."""
        is_old = deletions.c.asked_at < self._database.now_s - keep_s
        old = select(deletions.c.job_id).where(is_old, ~_HAS_ROW).order_by(deletions.c.asked_at)
        found = await self._database.read(lambda conn: conn.execute(old).scalars().all())
        gone = [job_id for job_id in found if job_id not in kept][:MAX_FORGOTTEN]
        if gone:
            statement = delete(deletions).where(deletions.c.job_id.in_(gone))
            await self._database.write(lambda write: write.conn.execute(statement), fence)
