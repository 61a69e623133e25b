"""Storing uploaded code: checked, whole or not at all, once for the same bytes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from service.asking import asked
from service.errors import InvalidError, TooLargeError
from service.folders import bundle_key
from service.records import BundleRow
from service.store.bundles import BundleStore
from workers.bundle import inspect_bundle
from workers.errors import BundleError, FieldProblem
from workers.storage import Storage

PART_SUFFIX = ".part"
CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Uploaded:
    """``is_new`` is False when the same bytes were there already."""

    bundle: BundleRow
    is_new: bool


class Bundles:
    """Bundles of one installation: bytes in ``storage``, by way of the folder ``uploads``, and rows in the store."""

    def __init__(self, store: BundleStore, storage: Storage, uploads: Path, max_bytes: int) -> None:
        self._store = store
        self._storage = storage
        self._uploads = uploads
        self._max_bytes = max_bytes

    async def upload(self, body: AsyncIterator[bytes]) -> Uploaded:
        """Receive a zip. Raises TooLargeError as soon as it is, InvalidError; nothing is left behind then."""
        self._uploads.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self._uploads / f"{secrets.token_hex(8)}{PART_SUFFIX}"
        try:
            sha256, size_bytes = await self._receive(body, part)
            key = bundle_key(sha256)
            is_there = await asked(self._storage.size, key) is not None
            if is_there and (known := await self._store.touch(sha256)) is not None:
                return Uploaded(known, is_new=False)
            try:
                summary = await asyncio.to_thread(inspect_bundle, part)
            except BundleError as error:
                raise InvalidError(
                    "the bundle is refused", [FieldProblem("", error.message)], code="BUNDLE_INVALID"
                ) from None
            # The bytes last before the row that names them is written.
            await asked(self._storage.write, key, _chunks(part))
            bundle, is_new = await self._store.add(sha256, size_bytes, summary.files)
            return Uploaded(bundle, is_new)
        finally:
            part.unlink(missing_ok=True)

    async def _receive(self, body: AsyncIterator[bytes], part: Path) -> tuple[str, int]:
        digest = hashlib.sha256()
        size_bytes = 0
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            async for chunk in body:
                size_bytes += len(chunk)
                if size_bytes > self._max_bytes:
                    raise TooLargeError(
                        f"the bundle is larger than {self._max_bytes} bytes; leave data and build outputs out of it"
                    )
                digest.update(chunk)
                await asyncio.to_thread(file.write, chunk)
        return digest.hexdigest(), size_bytes


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while data := stream.read(CHUNK_BYTES):
            yield data
