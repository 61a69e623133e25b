"""Whole databases: a backup of a SQLite file, and moving one to PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, create_engine, delete, func, insert, select, update
from sqlalchemy.pool import NullPool

from service.store.port import DatabaseAwayError, StoreError
from service.store.schema import installation, metadata
from service.store.transactions import away_told

ROWS_A_BATCH = 500


class NotEmptyError(StoreError):
    """The database to move to is in use already."""


def back_up(file: Path, target: Path) -> None:
    """Copy a SQLite database, also while a service uses it: as it was at one moment, whole or not at all.

    Raises FileExistsError, OSError, DatabaseAwayError.
    """
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with tempfile.TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as folder:
            part = Path(folder) / target.name
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT, 0o600))
            # mode=rw: a file that is not there must not be made.
            with (
                closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True)) as source,
                closing(sqlite3.connect(part)) as copy,
            ):
                source.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")  # one file, without companions
            part.replace(target)
    except BaseException as error:
        target.unlink(missing_ok=True)
        if isinstance(error, sqlite3.Error):
            raise DatabaseAwayError(f"{file} cannot be read: {error}") from error
        raise


async def move_to_postgres(file: Path, url: str) -> dict[str, int]:
    """Copy every row of a SQLite database; how many, by table.

    Both are at the newest migration, and nobody writes to the file meanwhile. The target is filled in one
    transaction: it has everything then, or is as it was. Raises NotEmptyError, DatabaseAwayError.
    """
    # Imported here: its driver is installed only where it is used.
    from service.store.postgres import postgres_engine

    engine = postgres_engine(url, is_pooled=False)
    try:
        with away_told():
            async with engine.begin() as conn:
                # Reading the file blocks the loop; a command has nothing else in it.
                return await conn.run_sync(lambda target: _copy_all(file, target))
    finally:
        await engine.dispose()


def _copy_all(file: Path, target: Connection) -> dict[str, int]:
    _check_unused(target)
    target.execute(delete(installation))
    source_engine = create_engine(f"sqlite:///{file}", poolclass=NullPool)
    numbers = {}
    with source_engine.connect() as source:
        for table in metadata.sorted_tables:
            number = 0
            rows = source.execution_options(yield_per=ROWS_A_BATCH).execute(select(table)).mappings()
            for batch in rows.partitions():
                target.execute(insert(table), [dict(row) for row in batch])
                number += len(batch)
            numbers[table.name] = number
    target.execute(update(installation).values(leader=None, lease_until=0.0))
    return numbers


def _check_unused(target: Connection) -> None:
    for table in metadata.sorted_tables:
        number = int(target.execute(select(func.count()).select_from(table)).scalar_one())
        if table is not installation and number:
            raise NotEmptyError(f"the database has {number} rows in {table.name} already; give an empty one")
