"""What a controller is given besides the row's desired state: everything that its workers need."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from workers.assignment import SWEEP_LABEL, Assignment, JobKey, Storage
from workers.control.decisions import ControlSettings
from workers.scratch import Bounds
from workers.spec import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """An attempt, resolved by the service.

    ``env`` has secrets filled in: it travels in calls only and is never logged or stored. ``bundle_file``
    is the path or URL of the archive in storage, None for built-in recipes. Checkpoints of attempts up to
    ``restart_after`` are not gone on from. ``bounds`` are of what nodes keep in ``scratch``.
    """

    spec: JobSpec
    storage: Storage
    scratch: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    bundle_file: str | None = None
    bundle_sha256: str | None = None
    lease_s: float = 600.0
    install_s: float = 1800.0
    restart_after: int = 0
    bounds: Bounds = field(default_factory=Bounds)
    settings: ControlSettings = field(default_factory=ControlSettings)

    @property
    def fits_spare(self) -> bool:
        """Whether a process that loaded torch ahead is just like a new one: with one thread, no GPU, plain environment.

        Libraries read the variables for their threads, and much else of ``env``, when they are loaded.
        """
        wanted = self.spec.resources
        return wanted.cpus <= 1 and wanted.gpus == 0 and not self.env

    @property
    def is_trial(self) -> bool:
        """Whether a sweep has started it."""
        return bool(self.spec.labels.get(SWEEP_LABEL))

    @property
    def pool(self) -> str:
        """Which processes may serve its workers one after another: those of one sweep, with the same code loaded."""
        if not self.is_trial or not self.fits_spare or self.spec.resources.memory_bytes is not None:
            return ""
        loaded = repr((self.bundle_sha256, self.spec.dependencies, self.spec.entrypoint))
        return f"{self.spec.labels[SWEEP_LABEL]}/{hashlib.sha256(loaded.encode()).hexdigest()[:16]}"

    def assignment(self, key: JobKey, worker_id: str) -> Assignment:
        """One worker's part."""
        return Assignment(
            key=key,
            worker_id=worker_id,
            spec=self.spec,
            storage=self.storage,
            scratch=self.scratch,
            env=self.env,
            bundle_sha256=self.bundle_sha256,
            lease_s=self.lease_s,
            pool=self.pool,
            install_s=self.install_s,
            bounds=self.bounds,
        )
