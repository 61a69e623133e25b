"""What a worker is told once, when its controller starts it; it never changes after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from workers.scratch import LOGS, Bounds
from workers.secrets import Secrets, secrets_of
from workers.spec import JobSpec

SWEEP_LABEL = "sweep"
"""The label by which the job of a trial names its sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKey:
    """Which attempt of which job; with a term it fences every call."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where a job's lasting files are: folders, or URLs of storage that all workers reach.

    ``checkpoints`` is the root of ``workers.checkpoints``, ``output`` what the user's code wrote to
    ``$CONCERTINA_OUTPUT``, ``init_from`` such a root, "/" and the name of the checkpoint to start from, or None.
    ``root`` is the storage of which all this is a part; a folder must bear its mark (``workers.storage.MARK``), None
    asks for no mark. ``options`` open URLs (``workers.storage_urls.provide``); they hold keys, so must never be logged.
    """

    checkpoints: str
    output: str
    init_from: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    root: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One worker's whole task.

    ``env`` has secrets already filled in; it must never be logged. ``scratch`` is a private folder on
    the node for this installation (bundles, dependencies, logs). ``bundle_sha256`` is None for built-in
    recipes. ``bounds`` are of what nodes keep in ``scratch``. ``lease_s`` is how long it lives without a call from a
    controller, ``install_s`` what the installer gets. ``pool``: where the process may wait for another assignment
    after this one; empty for nowhere.
    """

    key: JobKey
    worker_id: str
    spec: JobSpec
    storage: Storage
    scratch: str
    env: Mapping[str, str] = field(repr=False)
    bundle_sha256: str | None = None
    lease_s: float = 600.0
    pool: str = ""
    install_s: float = 1800.0
    bounds: Bounds = field(default_factory=Bounds)

    def as_placed(self, assigned: Mapping[str, float]) -> Assignment:
        """The same for a process to which Ray assigned this: without a GPU where it may have CPUs instead and has none.

        The process itself tells, as whoever placed it may be gone.
        """
        resources = self.spec.resources
        if resources.cpus_instead is None or assigned.get("GPU", 0.0) > 0:
            return self
        return replace(self, spec=self.spec.model_copy(update={"resources": resources.without_gpu()}))

    @property
    def secrets(self) -> Secrets:
        """What must not be shown of ``env``."""
        return secrets_of(self.spec, self.env)

    @property
    def log_file(self) -> str:
        """Where this worker's standard output and error go, on its node."""
        return log_file(self.scratch, self.key, self.worker_id)


def log_file(scratch: str, key: JobKey, worker_id: str) -> str:
    """The log of one worker; worker ids are unique within an attempt only."""
    return f"{scratch}/{LOGS}/{key.job_id}/{key.attempt}/{worker_id}.log"
