"""The leader's lease with its fencing number, and what the installation is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, inspect, select, text, update

from service.records import StoredCluster
from service.stillness import Stillness
from service.store.database import Database, superseded
from service.store.rows import cluster_of
from service.store.schema import REVISION, VERSION_TABLE, installation
from service.store.transactions import News


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """``page_secret`` signs page tokens; ``heartbeat_at`` is when a reconciler last renewed its lease.

    ``leader`` holds the lease now; None when nobody does.
    """

    id: str
    page_secret: bytes
    created_at: float
    change: int
    heartbeat_at: float | None
    leader: str | None
    cluster: StoredCluster | None


_HELD = select(installation.c.fence, installation.c.lease_until, installation.c.heartbeat_at)


@dataclass(frozen=True, slots=True)
class _Held:
    """Somebody's lease, in times of its leader's clock, whatever that shows. Each renewal gives another ``until``."""

    fence: int
    until: float
    renewed_at: float | None

    @property
    def length_s(self) -> float:
        return self.until - (self.renewed_at or 0.0)


class LeaseStore:
    """See ``ReconcilerStore`` for the promises of the lease."""

    def __init__(self, database: Database, monotonic_s: Callable[[], float]) -> None:
        self._database = database
        self._seen = Stillness[_Held | None](None, monotonic_s)

    async def installation(self) -> Installation:
        """The one row about this installation."""

        row = await self._database.read(lambda conn: conn.execute(select(installation)).one())
        return Installation(
            id=row.id,
            page_secret=bytes(row.page_secret),
            created_at=row.created_at,
            change=row.change,
            heartbeat_at=row.heartbeat_at,
            leader=row.leader if row.lease_until > self._database.now_s else None,
            cluster=cluster_of(row),
        )

    async def standing(self) -> Installation | None:
        """The installation, if the database answers and is at the migration that this code expects.

        Raises DatabaseAwayError when it does not answer.
        """
        return await self.installation() if await self.revision() == REVISION else None

    async def installation_id(self) -> str:
        """The name of this installation; also of a database that is at an older migration."""
        found = await self._database.read(lambda conn: conn.execute(select(installation.c.id)).scalar_one())
        return str(found)

    async def marked_storage(self) -> str | None:
        """The URL of the storage that bears the mark, None before the first."""
        row = await self._database.read(lambda conn: conn.execute(select(installation.c.storage)).one())
        return None if row.storage is None else str(row.storage)

    async def note_storage(self, url: str) -> None:
        """Note that this storage bears the mark."""

        def work(conn: Connection) -> None:
            conn.execute(update(installation).values(storage=url))

        await self._database.write_quietly(work)

    async def revision(self) -> str | None:
        """The migration that the database is at; None for a database without tables."""

        def work(conn: Connection) -> str | None:
            if not inspect(conn).has_table(VERSION_TABLE):
                return None
            found = conn.execute(text(f"SELECT version_num FROM {VERSION_TABLE}"))
            return found.scalar_one_or_none()

        return await self._database.read(work)

    async def watch_wishes(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` when users' wishes are committed, where the database tells so."""
        await self._database.watch({News.WISHES}, wake)

    async def take_lease(self, holder: str, ttl_s: float) -> int | None:
        """Become the leader; the fencing number, or None while another one is."""
        now_s, seen = self._database.now_s, self._seen.value
        is_free = (installation.c.lease_until <= now_s) | (installation.c.leader == holder)
        if seen is not None and self._seen.age_s >= seen.length_s:
            # Asked again in the statement: of several who have waited one takes it, and none from a leader that renews.
            is_free |= (installation.c.fence == seen.fence) & (installation.c.lease_until == seen.until)
        statement = (
            update(installation)
            .where(is_free)
            .values(fence=installation.c.fence + 1, leader=holder, lease_until=now_s + ttl_s, heartbeat_at=now_s)
            .returning(installation.c.fence)
        )

        def work(conn: Connection) -> int | _Held:
            fence = conn.execute(statement).scalar_one_or_none()
            if fence is not None:
                return int(fence)
            return _Held(*conn.execute(_HELD).one())

        found = await self._database.write_quietly(work)
        if isinstance(found, _Held):
            self._seen.see(found)
            return None
        return found

    async def renew_lease(self, fence: int, ttl_s: float) -> None:
        """Stay the leader. Raises FencedOutError."""
        now_s = self._database.now_s
        statement = (
            update(installation)
            .where(installation.c.fence == fence, installation.c.leader.is_not(None))
            .values(lease_until=now_s + ttl_s, heartbeat_at=now_s)
            .returning(installation.c.fence)
        )

        def work(conn: Connection) -> None:
            if conn.execute(statement).one_or_none() is None:
                raise superseded(fence)

        await self._database.write_quietly(work)

    async def release_lease(self, fence: int) -> None:
        """Let the next one take over at once."""
        statement = update(installation).where(installation.c.fence == fence).values(lease_until=0.0, leader=None)

        def work(conn: Connection) -> None:
            conn.execute(statement)

        await self._database.write_quietly(work)
