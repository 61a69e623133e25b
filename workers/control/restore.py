"""Which checkpoint in storage to go on from."""

from __future__ import annotations

from pathlib import Path

from workers.checkpoints import is_intact, list_checkpoints
from workers.status import CheckpointInfo


def newest_intact(root: str, restart_after: int) -> CheckpointInfo | None:
    """The newest complete checkpoint of an attempt above ``restart_after`` whose checksums hold, or None.

    Reads all bytes of the candidate: a damaged one costs the steps since the one before, not the job.
    """
    folder = Path(root)
    for info in reversed(list_checkpoints(folder)):
        if info.attempt > restart_after and is_intact(folder / info.path):
            return info
    return None
