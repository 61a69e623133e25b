"""A checkpoint as a worker leaves it, made without torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from workers.checkpoints import PIECES, Entry, Manifest, manifest_key, manifest_text
from workers.local_storage import FileCalls
from workers.status import CheckpointInfo
from workers.storage import Storage


class Hasty(FileCalls):
    """Nothing waits for the disk: for tests that write much and cut no power."""

    def fsync(self, descriptor: int) -> None:
        """Leave it to the system."""


def store_checkpoint(storage: Storage, info: CheckpointInfo, weights: Mapping[str, bytes] | None = None) -> None:
    """``weights`` are bytes by name; the optimizer's state is one byte that no restore could read."""
    piece = f"{PIECES}/{info.path}.0.moving"
    parts = {"": b"\0", **(weights or {})}
    entries, offset = {}, 0
    for name, data in parts.items():
        entries[name] = Entry(
            dtype="U8",
            shape=(len(data),),
            piece=piece,
            offset=offset,
            size_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        offset += len(data)
    storage.write(piece, parts.values())
    skeleton = entries.pop("")
    manifest = Manifest(info=info, plan={}, weights=entries, state={}, skeleton=skeleton, pieces={piece: offset})
    storage.write(manifest_key(info.path), [manifest_text(manifest).encode()])
