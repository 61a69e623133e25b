"""Rows about uploaded archives; their bytes lie in storage."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from service.ids import bundle_id
from service.records import BundleRow
from service.store.database import Database, Write
from service.store.rows import bundle_of
from service.store.schema import bundles


class BundleStore:
    """Bundles by what is in them: the same bytes are one row."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def touch(self, sha256: str) -> BundleRow | None:
        """The bundle with these bytes, kept for a while longer from now; None when there is none."""

        def work(write: Write) -> BundleRow | None:
            statement = update(bundles).where(bundles.c.sha256 == sha256).values(touched_at=write.now_s)
            row = write.conn.execute(statement.returning(bundles)).one_or_none()
            return None if row is None else bundle_of(row)

        return await self._database.write(work)

    async def add(self, sha256: str, size_bytes: int, files: int) -> tuple[BundleRow, bool]:
        """The bundle with these bytes, and whether it is new."""

        def work(write: Write) -> tuple[BundleRow, bool]:
            statement = update(bundles).where(bundles.c.sha256 == sha256).values(touched_at=write.now_s)
            row = write.conn.execute(statement.returning(bundles)).one_or_none()
            if row is not None:
                return bundle_of(row), False
            new = insert(bundles).values(
                id=bundle_id(sha256),
                sha256=sha256,
                size_bytes=size_bytes,
                files=files,
                created_at=write.now_s,
                touched_at=write.now_s,
            )
            return bundle_of(write.conn.execute(new.returning(bundles)).one()), True

        return await self._database.write(work)

    async def bundle(self, wanted: str) -> BundleRow | None:
        """A bundle by its id, or None."""

        def work(conn: Connection) -> BundleRow | None:
            row = conn.execute(select(bundles).where(bundles.c.id == wanted)).one_or_none()
            return None if row is None else bundle_of(row)

        return await self._database.read(work)
