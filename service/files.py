"""What jobs left in storage: checkpoints, and the files that their code wrote."""

from __future__ import annotations

from pathlib import Path

from service.asking import asked
from service.documents import Document, checkpoint_documents
from service.errors import NotFoundError
from service.folders import checkpoints_place, output_place
from service.jobs import Jobs
from service.local_files import MAX_LISTED, Download, chunks_of, listed, no_file, open_inside
from service.store.observed import ObservedStore
from service.times import rfc3339
from workers.checkpoints import checkpoint_names, read_manifest
from workers.errors import CheckpointError
from workers.status import CheckpointInfo
from workers.storage import Storage
from workers.storage_urls import local_folder, open_storage
from workers.weights_file import weights_file


class Files:
    """Checkpoints and outputs of jobs, in storage."""

    def __init__(self, jobs: Jobs, observed: ObservedStore, storage: str) -> None:
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
        return await asked(_weights, self._checkpoints(job_id), name, f"{job.name}-{step}.safetensors")

    async def files(self, job_id: str) -> list[Document]:
        """``[{path, size_bytes, modified_at}]`` of what the code wrote, by path. Raises NotFoundError."""
        await self._jobs.get(job_id)
        place = output_place(self._storage, job_id)
        folder = local_folder(place)
        return await asked(listed, Path(folder)) if folder else await asked(_keys, place)

    async def open_file(self, job_id: str, path: str) -> Download:
        """One of those files. Raises NotFoundError, also for what only a link would reach."""
        await self._jobs.get(job_id)
        place = output_place(self._storage, job_id)
        folder = local_folder(place)
        if folder is not None:
            return await asked(open_inside, Path(folder), path)
        return await asked(_object, open_storage(place, root=self._storage), path)

    async def _present(self, job_id: str) -> list[CheckpointInfo]:
        """Old checkpoints are removed by the workers, so a row may outlive its checkpoint for a while."""
        infos = await self._observed.checkpoints(job_id)
        names = frozenset(await asked(checkpoint_names, self._checkpoints(job_id)))
        return [info for info in infos if info.path in names]

    def _checkpoints(self, job_id: str) -> Storage:
        return open_storage(checkpoints_place(self._storage, job_id), root=self._storage)


def _weights(storage: Storage, name: str, file_name: str) -> Download:
    try:
        manifest = read_manifest(storage, name)
    except CheckpointError as error:
        raise NotFoundError(error.message) from None
    if manifest is None:
        raise NotFoundError(f"the checkpoint {name} was removed just now; GET .../checkpoints lists the others")
    file = weights_file(storage, manifest)
    return Download(name=file_name, size_bytes=file.size_bytes, chunks=file.chunks())


def _keys(place: str) -> list[Document]:
    found = open_storage(place).listed()[:MAX_LISTED]
    return [{"path": f.key, "size_bytes": f.size_bytes, "modified_at": rfc3339(f.modified_s)} for f in found]


def _object(storage: Storage, path: str) -> Download:
    # Only what is listed: a path could name more to the storage than a key below the root.
    size_bytes = next((found.size_bytes for found in storage.listed() if found.key == path), None)
    if size_bytes is None:
        raise no_file(path)
    return Download(
        name=path.rpartition("/")[2], size_bytes=size_bytes, chunks=chunks_of(storage.open(path), size_bytes)
    )
