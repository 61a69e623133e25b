"""The header ``Idempotency-Key``: what it may be, and what is wrong with one that was used."""

from __future__ import annotations

import hashlib
import json

from service.errors import BadRequestError, ConflictError, InvalidError
from service.store.keys import IdempotencyKey, KeyReusedError, KeySpentError

MAX_KEY_CHARS = 255


def read_key(key: str | None, scope: str, document: object) -> IdempotencyKey | None:
    """The key of a call, ``scope`` says which; None where none came with it. Raises BadRequestError."""
    if key is None:
        return None
    if not 1 <= len(key) <= MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise BadRequestError(f"Idempotency-Key must be 1 to {MAX_KEY_CHARS} printable ASCII characters")
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return IdempotencyKey(principal="admin", scope=scope, key=key, body_sha256=digest)


def refused_key(key: str, error: KeyReusedError | KeySpentError) -> InvalidError | ConflictError:
    """What to tell the caller."""
    if isinstance(error, KeySpentError):
        return ConflictError(f"Idempotency-Key {key!r} made {error}, which was deleted; take a new key")
    return InvalidError(
        f"Idempotency-Key {key!r} was used with another body; repeat that body, or take a new key",
        code="IDEMPOTENCY_KEY_REUSED",
    )
