"""Seeds that follow from other seeds, the same in every process. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection


def seed_of(*parts: int | str) -> int:
    """A seed of 32 bits that differs with each part."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big")


def fresh_seeds(seed: int, count: int, used: Collection[int]) -> tuple[int, ...]:
    """Seeds for runs that confirm a result: distinct, and none with which a trial was trained."""
    found: list[int] = []
    index = 0
    while len(found) < count:
        candidate = seed_of(seed, index)
        if candidate not in used and candidate not in found:
            found.append(candidate)
        index += 1
    return tuple(found)
