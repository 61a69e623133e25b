"""Files that jobs left: listed and opened without ever leaving the job's folder."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from service.documents import Document, checkpoint_documents
from service.errors import NotFoundError
from service.folders import checkpoints_folder, output_folder
from service.jobs import Jobs
from service.store.observed import ObservedStore
from service.times import rfc3339
from workers.checkpoints import MANIFEST, WEIGHTS
from workers.status import CheckpointInfo

MAX_LISTED = 10_000
MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A regular file open for reading; whoever gets it closes ``descriptor``."""

    descriptor: int
    size_bytes: int
    name: str


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

    async def open_weights(self, job_id: str, step: int) -> OpenFile:
        """The weights of the newest checkpoint at ``step``. Raises NotFoundError."""
        job = await self._jobs.get(job_id)
        found = [info for info in await self._present(job_id) if info.step == step]
        if not found:
            raise NotFoundError(f"{job_id} has no checkpoint of step {step}; GET .../checkpoints lists them")
        path = f"{max(found, key=lambda info: info.order).path}/{WEIGHTS}"
        opened = await asyncio.to_thread(open_inside, checkpoints_folder(self._storage, job_id), path)
        return OpenFile(opened.descriptor, opened.size_bytes, f"{job.name}-{step}.safetensors")

    async def files(self, job_id: str) -> list[Document]:
        """``[{path, size_bytes, modified_at}]`` of what the code wrote, by path. Raises NotFoundError."""
        await self._jobs.get(job_id)
        return await asyncio.to_thread(_listed, output_folder(self._storage, job_id))

    async def open_file(self, job_id: str, path: str) -> OpenFile:
        """One of those files. Raises NotFoundError, also for what only a link would reach."""
        await self._jobs.get(job_id)
        return await asyncio.to_thread(open_inside, output_folder(self._storage, job_id), path)

    async def _present(self, job_id: str) -> list[CheckpointInfo]:
        """Old checkpoints are removed by the workers, so a row may outlive its folder for a while."""
        root = checkpoints_folder(self._storage, job_id)
        infos = await self._observed.checkpoints(job_id)
        return [info for info in infos if _is_plain(info.path) and (root / info.path / MANIFEST).is_file()]


def open_inside(root: Path, path: str) -> OpenFile:
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
    return OpenFile(descriptor, status.st_size, parts[-1])


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
