"""Who may come in: hashes of tokens, browser sessions and one-time login links. Never the secrets themselves."""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, insert, select

from service.store.database import Database, Write
from service.store.schema import login_links, tokens

ADMIN = "admin"
SESSION = "session"


class AccessStore:
    """Hashes are SHA-256 in hexadecimal, of secrets with at least 128 random bits."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def has_admin(self) -> bool:
        """Whether an admin token was ever made."""

        def work(conn: Connection) -> bool:
            found = conn.execute(select(func.count()).where(tokens.c.kind == ADMIN))
            return bool(found.scalar_one())

        return await self._database.read(work)

    async def add_first_admin(self, sha256: str) -> bool:
        """Make this the admin token unless there is another; whether it is the admin token now.

        Replicas that start at once agree on one: numbered writes come one after another on any database.
        """

        def work(write: Write) -> bool:
            known = write.conn.execute(select(tokens.c.sha256).where(tokens.c.kind == ADMIN)).scalars().all()
            if not known:
                write.conn.execute(insert(tokens).values(sha256=sha256, kind=ADMIN, created_at=write.now_s))
            return not known or sha256 in known

        return await self._database.write(work)

    async def add_session(self, sha256: str, lifetime_s: float) -> None:
        """Let a browser in for a while; what is over goes."""
        now_s = self._database.now_s
        await self._database.write_quietly(lambda conn: _let_in(conn, sha256, now_s, lifetime_s))

    async def end_session(self, sha256: str) -> None:
        """Forget a browser's session."""

        def work(conn: Connection) -> None:
            conn.execute(delete(tokens).where(tokens.c.sha256 == sha256, tokens.c.kind == SESSION))

        await self._database.write_quietly(work)

    async def kind_of(self, sha256: str) -> str | None:
        """``admin`` or ``session`` for a token that is valid now, else None."""
        valid = tokens.c.expires_at.is_(None) | (tokens.c.expires_at > self._database.now_s)

        def work(conn: Connection) -> str | None:
            found = conn.execute(select(tokens.c.kind).where(tokens.c.sha256 == sha256, valid))
            return found.scalar_one_or_none()

        return await self._database.read(work)

    async def add_link(self, sha256: str, lifetime_s: float) -> None:
        """A login link's code; those that are over go."""
        now_s = self._database.now_s

        def work(conn: Connection) -> None:
            conn.execute(delete(login_links).where(login_links.c.expires_at <= now_s))
            conn.execute(insert(login_links).values(sha256=sha256, expires_at=now_s + lifetime_s))

        await self._database.write_quietly(work)

    async def use_link(self, sha256: str, session: str, lifetime_s: float) -> bool:
        """Spend a code and let a browser in for it; True exactly once, within the code's lifetime."""
        now_s = self._database.now_s
        spent = delete(login_links).where(login_links.c.sha256 == sha256).returning(login_links.c.expires_at)

        def work(conn: Connection) -> bool:
            expires_at = conn.execute(spent).scalar_one_or_none()
            if expires_at is None or expires_at <= now_s:
                return False
            _let_in(conn, session, now_s, lifetime_s)
            return True

        return await self._database.write_quietly(work)


def _let_in(conn: Connection, sha256: str, now_s: float, lifetime_s: float) -> None:
    conn.execute(delete(tokens).where(tokens.c.expires_at <= now_s))
    row = {"sha256": sha256, "kind": SESSION, "created_at": now_s, "expires_at": now_s + lifetime_s}
    conn.execute(insert(tokens).values(row))
