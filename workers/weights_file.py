"""A checkpoint's weights as one plain safetensors file, put together while it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import BinaryIO

from workers.checkpoints import Entry, Manifest
from workers.storage import Storage

_CHUNK_BYTES = 2**20
_HEADER_ALIGNMENT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsFile:
    """``size_bytes`` is the whole file's."""

    storage: Storage
    header: bytes
    entries: tuple[Entry, ...]
    size_bytes: int

    def chunks(self) -> Iterator[bytes]:
        """The file from its first byte to its last. Raises OSError as soon as a piece is gone or damaged."""
        yield self.header
        with ExitStack() as stack:
            files: dict[str, BinaryIO] = {}
            for entry in self.entries:
                if entry.piece not in files:
                    files[entry.piece] = stack.enter_context(self.storage.open(entry.piece))
                yield from _range(files[entry.piece], entry)


def weights_file(storage: Storage, manifest: Manifest) -> WeightsFile:
    """Lay the file out: tensors of wide numbers first, so that every one lies at a multiple of its numbers' size."""
    ordered = sorted(manifest.weights.items(), key=lambda pair: (-_number_bytes(pair[1]), pair[0]))
    header, offset = {}, 0
    for name, entry in ordered:
        header[name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [offset, offset + entry.size_bytes],
        }
        offset += entry.size_bytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    start = len(text).to_bytes(8, "little") + text
    entries = tuple(entry for _, entry in ordered if entry.size_bytes)
    return WeightsFile(storage=storage, header=start, entries=entries, size_bytes=len(start) + offset)


def _number_bytes(entry: Entry) -> int:
    count = 1
    for length in entry.shape:
        count *= length
    return entry.size_bytes // count if count else 0


def _range(file: BinaryIO, entry: Entry) -> Iterator[bytes]:
    file.seek(entry.offset)
    left, digest = entry.size_bytes, hashlib.sha256()
    while left > 0:
        data = file.read(min(_CHUNK_BYTES, left))
        if not data:
            raise OSError(f"{entry.piece} ends {left} bytes early; take another checkpoint")
        left -= len(data)
        digest.update(data)
        if left == 0 and digest.hexdigest() != entry.sha256:
            raise OSError(f"{entry.piece} is damaged from byte {entry.offset} on; take another checkpoint")
        yield data
