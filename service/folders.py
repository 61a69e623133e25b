"""Where files lie in storage and in the home directory; paths only, nothing is touched.

storage/bundles/<sha256>.zip
storage/jobs/<job id>/checkpoints/             as in workers.checkpoints
storage/jobs/<job id>/output/                  $CONCERTINA_OUTPUT
home/run/                                      sockets and process ids
home/token                                     the admin token, mode 0600
"""

from __future__ import annotations

from pathlib import Path


def bundles_folder(storage: Path) -> Path:
    """One file a bundle, named by its hash."""
    return storage / "bundles"


def bundle_path(storage: Path, sha256: str) -> Path:
    """The file with a bundle's bytes."""
    return bundles_folder(storage) / f"{sha256}.zip"


def jobs_folder(storage: Path) -> Path:
    """Holds one folder a job, named by its id."""
    return storage / "jobs"


def job_folder(storage: Path, job_id: str) -> Path:
    """All lasting files of one job; goes when the job is deleted."""
    return jobs_folder(storage) / job_id


def checkpoints_folder(storage: Path, job_id: str) -> Path:
    """The checkpoints of one job, in the form of ``workers.checkpoints``."""
    return job_folder(storage, job_id) / "checkpoints"


def output_folder(storage: Path, job_id: str) -> Path:
    """What the user's code wrote to ``$CONCERTINA_OUTPUT``."""
    return job_folder(storage, job_id) / "output"


def run_folder(home: Path) -> Path:
    """Sockets and process ids of the running service; mode 0700."""
    return home / "run"


def token_file(home: Path) -> Path:
    """The admin token for the command line on this machine."""
    return home / "token"
