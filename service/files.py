"""Files that jobs left: listed and opened without ever leaving the job's folder."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from service.documents import Document, checkpoint_documents
from service.errors import NotFoundError
from service.folders import checkpoints_folder, output_folder
from service.jobs import Jobs
from service.store.observed import ObservedStore
from service.times import rfc3339
from workers.checkpoints import checkpoint_names, read_manifest
from workers.errors import CheckpointError
from workers.status import CheckpointInfo
from workers.storage import Storage, open_storage
from workers.weights_file import weights_file

MAX_LISTED = 10_000
MAX_DEPTH = 32
CHUNK_BYTES = 2**18


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A file on its way to a user: ``chunks`` blocks where it is read from storage."""

    name: str
    size_bytes: int
    chunks: Iterator[bytes]


class Files:
    """Checkpoints and outputs of jobs, in storage."""

    def __init__(self, jobs: Jobs, observed: ObservedStore, storage: Path) -> None:
        self._jobs = jobs
        self._observed = observed
        self._storage = storage

    async def checkpoints(self, job_id: str) -> list[Document]:
        """Complete checkpoints that are in storage now, oldest first. Raises NotFoundError."""
        await self._jobs.get(job_id)
        return checkpoint_documents(await self._present(job_id))

    async def open_weights(self, job_id: str, step: int) -> Download:
        """The weights of the newest checkpoint at ``step`` as one safetensors file. Raises NotFoundError."""
        job = await self._jobs.get(job_id)
        found = [info for info in await self._present(job_id) if info.step == step]
        if not found:
            raise NotFoundError(f"{job_id} has no checkpoint of step {step}; GET .../checkpoints lists them")
        name = max(found, key=lambda info: info.order).path
        return await asyncio.to_thread(_weights, self._checkpoints(job_id), name, f"{job.name}-{step}.safetensors")

    async def files(self, job_id: str) -> list[Document]:
        """``[{path, size_bytes, modified_at}]`` of what the code wrote, by path. Raises NotFoundError."""
        await self._jobs.get(job_id)
        return await asyncio.to_thread(_listed, output_folder(self._storage, job_id))

    async def open_file(self, job_id: str, path: str) -> Download:
        """One of those files. Raises NotFoundError, also for what only a link would reach."""
        await self._jobs.get(job_id)
        return await asyncio.to_thread(open_inside, output_folder(self._storage, job_id), path)

    async def _present(self, job_id: str) -> list[CheckpointInfo]:
        """Old checkpoints are removed by the workers, so a row may outlive its checkpoint for a while."""
        infos = await self._observed.checkpoints(job_id)
        names = frozenset(await asyncio.to_thread(checkpoint_names, self._checkpoints(job_id)))
        return [info for info in infos if info.path in names]

    def _checkpoints(self, job_id: str) -> Storage:
        return open_storage(str(checkpoints_folder(self._storage, job_id)))


def _weights(storage: Storage, name: str, file_name: str) -> Download:
    try:
        manifest = read_manifest(storage, name)
    except CheckpointError as error:
        raise NotFoundError(error.message) from None
    if manifest is None:
        raise NotFoundError(f"the checkpoint {name} was removed just now; GET .../checkpoints lists the others")
    file = weights_file(storage, manifest)
    return Download(name=file_name, size_bytes=file.size_bytes, chunks=file.chunks())


def open_inside(root: Path, path: str) -> Download:
    """Open a regular file under ``root`` by a relative path, following no link on the way.

    Each part is opened in the folder that the part before it opened, so nothing can be swapped in
    between. Raises NotFoundError for everything that is not a regular file there.
    """
    missing = NotFoundError(f"there is no file {path[:200]!r}; GET .../files lists them")
    parts = path.split("/")
    if len(parts) > MAX_DEPTH or not all(_is_plain(part) for part in parts):
        raise missing
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        raise missing from None
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        # Without O_NONBLOCK a named pipe would be waited for.
        descriptor = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise missing from None
    finally:
        os.close(folder)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise missing
    file = os.fdopen(descriptor, "rb")
    return Download(name=parts[-1], size_bytes=status.st_size, chunks=_chunks(file, status.st_size))


def _chunks(file: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    """As much as there was when it was opened; less where it is cut short meanwhile, which its length then tells."""
    with file:
        while size_bytes > 0 and (data := file.read(min(CHUNK_BYTES, size_bytes))):
            size_bytes -= len(data)
            yield data


def _is_plain(part: str) -> bool:
    return part not in ("", ".", "..") and "/" not in part and "\0" not in part


def _listed(root: Path) -> list[Document]:
    found = []
    for path, status in _walk(root, ""):
        found.append({"path": path, "size_bytes": status.st_size, "modified_at": rfc3339(status.st_mtime)})
        if len(found) == MAX_LISTED:
            break
    return sorted(found, key=lambda document: str(document["path"]))


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    if prefix.count("/") >= MAX_DEPTH:
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        try:
            entry.name.encode()
            status = entry.stat(follow_symlinks=False)
        except (OSError, UnicodeEncodeError):
            continue
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(folder / entry.name, f"{prefix}{entry.name}/")
        elif stat.S_ISREG(status.st_mode):
            yield f"{prefix}{entry.name}", status
