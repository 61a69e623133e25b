"""Where the user's code writes files, and how they get to storage that is no folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from workers.assignment import Assignment
from workers.local_storage import check_mark
from workers.scratch import OUTPUT
from workers.storage import PART_SUFFIX
from workers.storage_urls import local_folder, open_storage

_CHUNK_BYTES = 2**20


def output_folder(assignment: Assignment) -> Path:
    """The folder behind ``$CONCERTINA_OUTPUT``: in storage, or one of this worker's until ``bring_home``."""
    folder = local_folder(assignment.storage.output)
    if folder is not None:
        return Path(folder)
    key = assignment.key
    return Path(assignment.scratch) / OUTPUT / key.job_id / str(key.attempt) / assignment.worker_id


def make_output_folder(assignment: Assignment) -> Path:
    """Have it there. Raises StorageAwayError where it would be made in a storage that is away."""
    folder, root = output_folder(assignment), assignment.storage.root
    if not folder.is_dir() and root is not None and (place := local_folder(root)) is not None:
        check_mark(Path(place))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def bring_home(assignment: Assignment) -> None:
    """Store what this worker's code wrote, where that is not in storage yet; of one name the last one stays.

    Raises OSError where the storage fails; the files then stay on the node.
    """
    if local_folder(assignment.storage.output) is not None:
        return
    folder, storage = output_folder(assignment), open_storage(assignment.storage.output)
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.is_symlink() and file.suffix != PART_SUFFIX:
            storage.write(file.relative_to(folder).as_posix(), _chunks(file))
    shutil.rmtree(folder, ignore_errors=True)


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while data := stream.read(_CHUNK_BYTES):
            yield data
