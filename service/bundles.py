"""Storing uploaded code: checked, whole or not at all, once for the same bytes.

Each upload goes to a key of its own, which is noted before anything lies there. So bytes under a key that
nobody has noted belong to nobody, and who removes them can never hit what another upload of the same stores meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from service.asking import asked, asked_within
from service.errors import InvalidError, TooLargeError, UnavailableError
from service.folders import new_bundle_key
from service.patience import answered
from service.records import BundleRow
from service.replica import Claim
from service.store.bundles import BundleStore, UploadForgottenError
from workers.bundle import inspect_bundle
from workers.errors import BundleError, FieldProblem
from workers.storage_urls import open_storage

CHUNK_BYTES = 2**20
WRITE_S = 600.0
"""For the bytes of one bundle."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """``is_new`` is False when the same bytes were there already."""

    bundle: BundleRow
    is_new: bool


class Bundles:
    """Bundles of one installation: bytes in ``storage``, by way of the folder ``uploads``, and rows in the store."""

    def __init__(self, store: BundleStore, claim: Claim, storage: str, uploads: Path, max_bytes: int) -> None:
        self._store = store
        self._claim = claim
        self._storage = open_storage(storage, root=storage)
        self._uploads = uploads
        self._max_bytes = max_bytes

    async def upload(self, body: AsyncIterator[bytes]) -> Uploaded:
        """Receive a zip. Raises TooLargeError as soon as it is, InvalidError, UnavailableError."""
        self._uploads.mkdir(mode=0o700, parents=True, exist_ok=True)
        # It has no name, so that of a process that is killed meanwhile nothing stays.
        with tempfile.TemporaryFile(dir=self._uploads) as part:
            sha256, size_bytes = await self._receive(body, part)
            known = await self._store.touch(sha256)
            if known is not None and await asked(self._storage.size, known.key) is not None:
                return Uploaded(known, is_new=False)
            try:
                summary = await asyncio.to_thread(inspect_bundle, part)
            except BundleError as error:
                raise InvalidError(
                    "the bundle is refused", [FieldProblem("", error.message)], code="BUNDLE_INVALID"
                ) from None
            key = await self._stored(sha256, part)
        lost = None if known is None else known.key
        try:
            bundle, is_new = await self._store.add(sha256, size_bytes, summary.files, key, lost=lost)
        except UploadForgottenError:
            raise UnavailableError("the bundle took too long to be stored; upload it again") from None
        if bundle.key != key:
            # Somebody else was faster with the same.
            with contextlib.suppress(OSError):
                await answered(partial(self._storage.delete, key))
        return Uploaded(bundle, is_new)

    async def _stored(self, sha256: str, part: BinaryIO) -> str:
        """The key under which the bytes are, before any row says so."""
        key = new_bundle_key(sha256)
        await self._claim.hold()
        await self._store.announce(key)
        await asked_within(WRITE_S, self._storage.write, key, _chunks(part))
        return key

    async def _receive(self, body: AsyncIterator[bytes], part: BinaryIO) -> tuple[str, int]:
        digest = hashlib.sha256()
        size_bytes = 0
        async for chunk in body:
            size_bytes += len(chunk)
            if size_bytes > self._max_bytes:
                raise TooLargeError(
                    f"the bundle is larger than {self._max_bytes} bytes; leave data and build outputs out of it"
                )
            digest.update(chunk)
            await asyncio.to_thread(part.write, chunk)
        return digest.hexdigest(), size_bytes


def _chunks(part: BinaryIO) -> Iterator[bytes]:
    part.seek(0)
    while data := part.read(CHUNK_BYTES):
        yield data
