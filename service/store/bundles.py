"""Rows about uploaded archives; their bytes lie in storage."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, literal, select, union_all, update

from service.ids import bundle_id
from service.records import BundleRow
from service.store.database import Database, Write
from service.store.port import StoreError
from service.store.rows import bundle_of
from service.store.schema import bundles, metadata, uploads

BUNDLE_GRACE_S = 3600.0
"""A bundle that no job names is kept this long after its last upload: its job may be on the way."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """What has to follow in storage; ``bundle_key`` is set when nothing needs the bytes there any more."""

    bundle_key: str | None


class UploadForgottenError(StoreError):
    """The upload took so long that it was given up, and its bytes with it; upload them again."""


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

    async def announce(self, key: str) -> None:
        """Note that bytes are about to be stored under this key; what nobody has noted there is anybody's to remove."""

        def work(write: Write) -> None:
            write.conn.execute(insert(uploads).values(key=key, begun_at=write.now_s))

        await self._database.write(work)

    async def add(
        self, sha256: str, size_bytes: int, files: int, key: str, *, lost: str | None = None
    ) -> tuple[BundleRow, bool]:
        """The bundle with these bytes, which lie under the announced ``key``, and whether it is new.

        One that is there already keeps its own key, unless that is ``lost``, where the caller missed them.
        Raises UploadForgottenError.
        """

        def work(write: Write) -> tuple[BundleRow, bool]:
            known = write.conn.execute(delete(uploads).where(uploads.c.key == key).returning(uploads.c.key))
            if known.one_or_none() is None:
                raise UploadForgottenError(f"the upload under {key} was given up")
            same = bundles.c.sha256 == sha256
            write.conn.execute(update(bundles).where(same, bundles.c.key == lost).values(key=key))
            row = write.conn.execute(update(bundles).where(same).values(touched_at=write.now_s).returning(bundles))
            if (found := row.one_or_none()) is not None:
                return bundle_of(found), False
            new = insert(bundles).values(
                id=bundle_id(sha256),
                sha256=sha256,
                key=key,
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


class BundleKeeping:
    """The reconciler's side of bundles; see ``ReconcilerStore`` for the promises."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def forget_bundles(self, keep_s: float, upload_s: float, fence: int) -> None:
        """Drop bundles that nothing names, and uploads that came to nothing."""

        def work(write: Write) -> None:
            old = bundles.c.touched_at < write.now_s - keep_s
            write.conn.execute(delete(bundles).where(old, unnamed()))
            write.conn.execute(delete(uploads).where(uploads.c.begun_at < write.now_s - upload_s))

        await self._database.write(work, fence)

    async def bundle_keys(self) -> frozenset[str]:
        """The keys under which bytes may lie, or be on the way."""

        def work(conn: Connection) -> frozenset[str]:
            found = conn.execute(union_all(select(bundles.c.key), select(uploads.c.key)))
            return frozenset(found.scalars())

        return await self._database.read(work)


def unnamed() -> ColumnElement[bool]:
    """The condition on ``bundles`` that no row of any table refers to it, and so nothing may start with it."""
    keys = [key for table in metadata.tables.values() for key in table.foreign_keys if key.column is bundles.c.id]
    return and_(*(~select(literal(1)).where(key.parent == bundles.c.id).exists() for key in keys))


def drop_bundle(write: Write, bundle_id: str) -> str | None:
    """Forget a bundle that nothing names any more; the key of its bytes, which the caller removes."""
    gone = write.conn.execute(
        delete(bundles)
        .where(bundles.c.id == bundle_id, bundles.c.touched_at < write.now_s - BUNDLE_GRACE_S, unnamed())
        .returning(bundles.c.key)
    )
    return gone.scalar_one_or_none()
