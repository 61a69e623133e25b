"""The many rows of a long job go in parts, so that no other writer waits for all of them."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

from sqlalchemy import Connection, Table, delete, func, select, tuple_

from service.records import JobRow
from service.store.database import Database
from service.store.port import StaleRowError
from service.store.schema import jobs, metadata

Key: TypeAlias = tuple[Any, ...]
"""Of a row within its job."""

ROWS_A_PART = 5000

_OF_JOBS = [table for table in metadata.sorted_tables if any(key.references(jobs) for key in table.foreign_keys)]
"""Tables whose rows go with their job; its id comes first in their keys."""


async def shorten(database: Database, job: JobRow) -> None:
    """Delete what an ended job has beyond ``ROWS_A_PART`` rows a table; the job and the rest are still there then.

    Whatever stops it half-way leaves an ended job with less of its history, to be deleted again.
    Raises StaleRowError.
    """
    for table in _OF_JOBS:
        # Looked for by a reader, for whom nobody waits.
        ends = await database.read(partial(ends_of_parts, table=table, job_id=job.id))
        for begin, end in pairwise([None, *ends]):
            assert end is not None
            await database.write_quietly(partial(delete_part, table=table, job=job, begin=begin, end=end))


def ends_of_parts(conn: Connection, table: Table, job_id: str) -> list[Key]:
    """The keys before which parts of so many rows end, in order; all that comes after the last one is fewer."""
    first, *others = table.primary_key.columns
    number = func.row_number().over(order_by=others).label("number")
    rows = select(*others, number).where(first == job_id).subquery()
    names = [rows.c[column.name] for column in others]
    is_end = (rows.c.number > 1) & (rows.c.number % ROWS_A_PART == 1)
    return [tuple(row) for row in conn.execute(select(*names).where(is_end).order_by(*names))]


def delete_part(conn: Connection, table: Table, job: JobRow, begin: Key | None, end: Key) -> None:
    """Delete the rows of an ended job from one key to before another. Raises StaleRowError."""
    same = (jobs.c.id == job.id, jobs.c.state == job.state, jobs.c.version == job.version)
    # Locked, so that no command for the job comes between this look and the end of the transaction.
    if conn.execute(select(jobs.c.id).where(*same).with_for_update()).one_or_none() is None:
        raise StaleRowError(f"{job.id} has changed; read it again")
    first, *others = table.primary_key.columns
    # PostgreSQL would walk over all that was deleted before if it were not told where that ended.
    is_after = [] if begin is None else [tuple_(*others) >= tuple_(*begin)]
    conn.execute(delete(table).where(first == job.id, *is_after, tuple_(*others) < tuple_(*end)))
