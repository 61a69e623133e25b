"""Where things lie in storage and in the home directory; names only, nothing is touched.

``storage`` is a folder's path or the URL of other storage; what is below it is named in its way.

storage/installation                           its name, for other replicas to compare
storage/bundles/<sha256>.<upload>.zip           never written again under the same name
storage/jobs/<job id>/checkpoints/             as in workers.checkpoints
storage/jobs/<job id>/output/                  $CONCERTINA_OUTPUT
home/uploads/                                  bundles that are still being received
home/run/                                      sockets and process ids
home/token                                     the admin token, mode 0600
"""

from __future__ import annotations

import secrets
from pathlib import Path

from workers.storage import PART_SUFFIX
from workers.storage_urls import join

BUNDLES, JOBS = "bundles", "jobs"
_ZIP = ".zip"


def new_bundle_key(sha256: str) -> str:
    """A key for a bundle's bytes that nobody has ever used: whoever removes others cannot mean these."""
    return f"{BUNDLES}/{sha256}.{secrets.token_hex(8)}{_ZIP}"


def bundle_key_in(key: str) -> str:
    """The key of a bundle that an object in storage is, or was to become where its write was cut off."""
    return key.rpartition(_ZIP)[0] + _ZIP if key.endswith(PART_SUFFIX) else key


def job_place(storage: str, job_id: str) -> str:
    """All lasting files of one job; goes when the job is deleted."""
    return join(storage, JOBS, job_id)


def checkpoints_place(storage: str, job_id: str) -> str:
    """The checkpoints of one job, in the form of ``workers.checkpoints``."""
    return join(job_place(storage, job_id), "checkpoints")


def output_place(storage: str, job_id: str) -> str:
    """What the user's code wrote to ``$CONCERTINA_OUTPUT``."""
    return join(job_place(storage, job_id), "output")


def uploads_folder(home: Path) -> Path:
    """Holds what is lost when the service ends."""
    return home / "uploads"


def run_folder(home: Path) -> Path:
    """Sockets and process ids of the running service; mode 0700."""
    return home / "run"


def token_file(home: Path) -> Path:
    """The admin token for the command line on this machine."""
    return home / "token"
