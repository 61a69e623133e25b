"""Who may come in: one admin token, browser sessions, and links that log a browser in once."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from service.folders import token_file
from service.store.access import ADMIN, AccessStore

TOKEN_PREFIX = "ctn_"
LINK_LIFETIME_S = 600.0
SESSION_LIFETIME_S = 30 * 86400.0
REMEMBERED_S = 5.0
MAX_REMEMBERED = 1000


class Access:
    """Checks what a request shows; what was valid is remembered for a few seconds."""

    def __init__(self, store: AccessStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._valid_until: dict[str, float] = {}

    async def is_valid(self, secret: str) -> bool:
        """Whether an admin token or a session cookie is good now."""
        digest = sha256(secret)
        now_s = self._clock()
        if self._valid_until.get(digest, 0.0) > now_s:
            return True
        if await self._store.kind_of(digest) is None:
            return False
        if len(self._valid_until) >= MAX_REMEMBERED:
            self._valid_until.clear()
        self._valid_until[digest] = now_s + REMEMBERED_S
        return True

    async def log_in(self, token: str) -> str | None:
        """A new session's secret for who shows a valid admin token; None otherwise."""
        if await self._store.kind_of(sha256(token)) != ADMIN:
            return None
        secret = secrets.token_urlsafe(32)
        await self._store.add_session(sha256(secret), SESSION_LIFETIME_S)
        return secret

    async def log_in_by_link(self, code: str) -> str | None:
        """A new session's secret for a login link's code, which is spent by this; None when it is no good."""
        secret = secrets.token_urlsafe(32)
        return secret if await self._store.use_link(sha256(code), sha256(secret), SESSION_LIFETIME_S) else None

    async def log_out(self, secret: str) -> None:
        """End a session. Admin tokens stay."""
        digest = sha256(secret)
        self._valid_until.pop(digest, None)
        await self._store.end_session(digest)


async def ensure_admin_token(store: AccessStore, home: Path) -> None:
    """At the first start make the admin token: its hash in the database, itself in ``home/token`` (mode 0600).

    A token file that is there already (from a start that was cut off, or another database) is taken. Where
    another replica was first no file is left: it would open nothing.
    """
    if await store.has_admin():
        return
    token = _read_token(home) or _write_token(home)
    if not await store.add_first_admin(sha256(token)):
        token_file(home).unlink(missing_ok=True)


async def make_login_link(store: AccessStore, base_url: str) -> str:
    """A link that logs a browser in once, within ten minutes; ``base_url`` has no path."""
    code = secrets.token_urlsafe(24)
    await store.add_link(sha256(code), LINK_LIFETIME_S)
    return f"{base_url.rstrip('/')}/login?code={code}"


def sha256(secret: str) -> str:
    """A hash to store and compare; secrets are long and random, so a slow one is not needed."""
    return hashlib.sha256(secret.encode("utf-8", errors="replace")).hexdigest()


def _read_token(home: Path) -> str | None:
    try:
        token = token_file(home).read_text().strip()
    except OSError:
        return None
    return token if token.startswith(TOKEN_PREFIX) and len(token) >= 40 else None


def _write_token(home: Path) -> str:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = token_file(home)
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{token}\n")
        file.flush()
        os.fsync(descriptor)
    # A command that waits for the token must never find half of it.
    part.replace(path)
    return token
