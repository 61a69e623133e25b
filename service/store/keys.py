"""Idempotency keys: a repeated call finds what the first one made."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, insert, select

from service.store.database import Write
from service.store.port import StoreError
from service.store.schema import idempotency_keys as table

KEY_LIFETIME_S = 24 * 3600.0


class KeyReusedError(StoreError):
    """The idempotency key was used with another body."""


class KeySpentError(StoreError):
    """What the idempotency key stands for was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyKey:
    """Makes a repeated call find what the first one made; ``body_sha256`` is of the body as received."""

    principal: str
    scope: str
    key: str
    body_sha256: str


def made_before(write: Write, key: IdempotencyKey) -> str | None:
    """The id of what an earlier call with this key made. Raises KeyReusedError."""
    write.conn.execute(delete(table).where(table.c.created_at < write.now_s - KEY_LIFETIME_S))
    found = write.conn.execute(
        select(table.c.body_sha256, table.c.made_id).where(
            table.c.principal == key.principal, table.c.scope == key.scope, table.c.key == key.key
        )
    )
    row = found.one_or_none()
    if row is None:
        return None
    if row.body_sha256 != key.body_sha256:
        raise KeyReusedError(key.key)
    return str(row.made_id)


def spend(write: Write, key: IdempotencyKey, made_id: str) -> None:
    """From now on the key stands for what was made."""
    write.conn.execute(
        insert(table).values(
            principal=key.principal,
            scope=key.scope,
            key=key.key,
            body_sha256=key.body_sha256,
            made_id=made_id,
            created_at=write.now_s,
        )
    )
