"""Configurations: reading them, and replacing them with what they were kept in a history."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from service.configuration_records import BY_HAND, ConfigurationRow, ReplacedVersion, nameless
from service.records import ListPart
from service.store.bundles import Deleted, drop_bundle
from service.store.configuration_tables import configuration_versions as versions
from service.store.configuration_tables import configurations
from service.store.database import Database, Write
from service.store.list_parts import part_of
from service.store.port import StaleRowError
from service.store.references import check_references
from service.store.rows import dumps
from service.store.statements import any_number, text_bytes
from workers.spec import JobSpec

MAX_HISTORY = 100
"""Versions of one configuration that are kept besides the one in use; older ones go."""


@dataclass(frozen=True, slots=True)
class Put:
    """``bundle_key`` is set when nothing needs the bytes of the bundle before any more."""

    configuration: ConfigurationRow
    is_new: bool
    bundle_key: str | None = None


class ConfigurationStore:
    """The API's side of configurations."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def configuration(self, name: str) -> ConfigurationRow | None:
        """One configuration, or None."""
        return await self._database.read(lambda conn: fetch_configuration(conn, name))

    async def view(
        self, name: str, limit: int, before: int | None = None
    ) -> tuple[ConfigurationRow, ListPart[ReplacedVersion]] | None:
        """One configuration and at most ``limit`` of its former versions, the latest first; None without it.

        Those before version ``before``; fewer where their specs are large.
        """
        of_it = select(versions).where(versions.c.name == name)
        if before is not None:
            of_it = of_it.where(versions.c.version < any_number(before))
        chosen = of_it.order_by(versions.c.version.desc())

        def work(conn: Connection) -> tuple[ConfigurationRow, ListPart[ReplacedVersion]] | None:
            row = fetch_configuration(conn, name)
            if row is None:
                return None
            found = part_of(conn, chosen, text_bytes(versions, conn.dialect.name), limit)
            return row, ListPart([_version_of(each) for each in found.rows], found.has_more)

        return await self._database.read(work)

    async def page(self, search: str | None, limit: int, after: str | None = None) -> ListPart[ConfigurationRow]:
        """At most ``limit`` configurations by name, those after ``after``; fewer where their specs are large.

        ``search`` is part of a name.
        """
        chosen = select(configurations).order_by(configurations.c.name)
        if after is not None:
            chosen = chosen.where(configurations.c.name > after)
        if search:
            chosen = chosen.where(configurations.c.name.contains(search, autoescape=True))

        def work(conn: Connection) -> ListPart[ConfigurationRow]:
            found = part_of(conn, chosen, text_bytes(configurations, conn.dialect.name), limit)
            return ListPart([_configuration_of(row) for row in found.rows], found.has_more)

        return await self._database.read(work)

    async def check_references(self, job: JobSpec) -> None:
        """Raises UnknownReferenceError, as ``create`` and ``replace`` would now."""
        await self._database.read(lambda conn: check_references(conn, job))

    async def create(self, name: str, job: JobSpec) -> ConfigurationRow:
        """Store the first version. Raises UnknownReferenceError, StaleRowError when there is one by now."""

        def work(write: Write) -> ConfigurationRow:
            check_references(write.conn, job)
            if fetch_configuration(write.conn, name) is not None:
                raise StaleRowError(f"there is a configuration {name} by now; read it")
            columns = {**_spec_columns(write, job), "name": name, "version": 1, "created_at": write.now_s}
            made = insert(configurations).values(columns).returning(configurations)
            return _configuration_of(write.conn.execute(made).one())

        return await self._database.write(work)

    async def replace(self, row: ConfigurationRow, job: JobSpec) -> Put:
        """Make it the next version. Raises UnknownReferenceError, StaleRowError when it was written since."""

        def work(write: Write) -> Put:
            check_references(write.conn, job)
            before = _bundle_id(write.conn, row.name)
            replaced = replace_with(write, row, job, BY_HAND, None)
            is_over = before is not None and before != job.bundle
            return Put(replaced, is_new=False, bundle_key=drop_bundle(write, before) if before and is_over else None)

        return await self._database.write(work)

    async def delete(self, row: ConfigurationRow) -> Deleted:
        """Remove it with its history. Raises StaleRowError when it was written since."""

        def work(write: Write) -> Deleted:
            same = (configurations.c.name == row.name, configurations.c.changed == row.changed)
            found = delete(configurations).where(*same).returning(configurations.c.bundle_id)
            gone = write.conn.execute(found).one_or_none()
            if gone is None:
                raise StaleRowError(f"{row.name} has changed; read it again")
            return Deleted(None if gone.bundle_id is None else drop_bundle(write, gone.bundle_id))

        return await self._database.write(work)


def fetch_configuration(conn: Connection, name: str) -> ConfigurationRow | None:
    """The row as this transaction sees it."""
    row = conn.execute(select(configurations).where(configurations.c.name == name)).one_or_none()
    return None if row is None else _configuration_of(row)


def replace_with(
    write: Write, row: ConfigurationRow, job: JobSpec, by: str, evidence: Mapping[str, Any] | None
) -> ConfigurationRow:
    """The next version; what the job names was found to be there. Raises StaleRowError when it was written since."""
    same = (configurations.c.name == row.name, configurations.c.changed == row.changed)
    columns = {**_spec_columns(write, job), "version": row.version + 1}
    replaced = write.conn.execute(update(configurations).where(*same).values(columns).returning(configurations))
    found = replaced.one_or_none()
    if found is None:
        raise StaleRowError(f"{row.name} is no longer as at change {row.changed}; read it again")
    told = {
        "name": row.name,
        "version": row.version,
        "spec": row.spec_json,
        "replaced_at": write.now_s,
        "replaced_by": by,
        "evidence": None if evidence is None else dumps(evidence),
    }
    write.conn.execute(insert(versions).values(told))
    old = (versions.c.name == row.name, versions.c.version <= row.version - MAX_HISTORY)
    write.conn.execute(delete(versions).where(*old))
    return _configuration_of(found)


def _spec_columns(write: Write, job: JobSpec) -> dict[str, Any]:
    return {
        "spec": json.dumps(nameless(job)),
        "bundle_id": job.bundle,
        "changed": write.change,
        "updated_at": write.now_s,
    }


def _bundle_id(conn: Connection, name: str) -> str | None:
    found = conn.execute(select(configurations.c.bundle_id).where(configurations.c.name == name))
    return found.scalar_one_or_none()


def _configuration_of(row: Row[Any]) -> ConfigurationRow:
    return ConfigurationRow(
        name=row.name,
        spec_json=row.spec,
        version=row.version,
        changed=row.changed,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _version_of(row: Row[Any]) -> ReplacedVersion:
    return ReplacedVersion(
        version=row.version,
        spec_json=row.spec,
        replaced_at=row.replaced_at,
        by=row.replaced_by,
        evidence=None if row.evidence is None else json.loads(row.evidence),
    )
