"""What brings about the calls on a real Ray within which a reconciler dies, and what tells that it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import ray

from service.client import Client
from service.supervise.ray_record import RayRecord
from service.sweep_records import ENDED_SWEEPS
from tests.cluster.gated import ENDED
from tests.faults.crash_points import CrashPoint, When
from tests.faults.diary import read_diary, read_saves
from tests.faults.evidence import gather
from tests.faults.findings import Finding, at_rest
from tests.faults.oracle import Case, judge
from tests.faults.processes import RECONCILER, Installation
from tests.faults.ray_paths import JOB, POINTS, STRAY, SWEEP
from tests.faults.ray_remains import ray_remains
from tests.waiting import wait_for
from workers.assignment import JobKey
from workers.control.controller import job_controller_actor
from workers.control.names import controller_name
from workers.control.roster import Roster

ORPHANS_S = 60.0
END_S = 120.0


@dataclass
class Scene:
    """One installation on a real Ray, whose reconciler dies again and again."""

    record: RayRecord
    installation: Installation
    client: Client
    bundle: str
    accepted: dict[str, str] = field(default_factory=dict)
    points: ClassVar[Sequence[tuple[str, str]]] = POINTS
    is_patient: ClassVar[bool] = False

    def struck(self, number: int) -> Callable[[], bool]:
        """The reconciler comes to a point and dies; gives what tells whether what was begun there is over."""
        method, what = self.points[number]
        point = CrashPoint(method=method, when=When.AFTER)
        is_over = self._stirs()[what](f"{what}-{number}")
        self.installation.start(RECONCILER, point)
        told = self.installation.told
        wait_for(f"the point {point}", lambda: not self.installation.is_alive(RECONCILER), END_S, told)
        assert self.installation.has_struck(RECONCILER, point), f"it died elsewhere: {told()}"
        return is_over

    def _stirs(self) -> Mapping[str, Callable[[str], Callable[[], bool]]]:
        return {JOB: self._job, SWEEP: self._sweep, STRAY: self._stray}

    @cached_property
    def _roster(self) -> Roster:
        """Of the installation, by a driver of this process's own."""
        namespace = gather(self.installation.settings).installation
        ray.init(address=self.record.address, namespace=namespace, log_to_driver=False, configure_logging=False)
        return Roster(namespace)

    def _job(self, key: str) -> Callable[[], bool]:
        config = {"folder": str(self.installation.settings.home), "num_samples": 24, "pace_s": 0.02}
        spec = {
            "name": key,
            "entrypoint": "train:build",
            "bundle": self.bundle,
            "config": config,
            "steps": 12,
            "batch": {"global_size": 12, "micro_size": 12},
            "checkpoint": {"every_steps": 5},
        }
        made = str(self.client.submit(spec, key)["id"])
        self.accepted[key] = made
        return lambda: self.client.job(made)["state"] in ENDED

    def _sweep(self, key: str) -> Callable[[], bool]:
        spec = {
            "name": key,
            "job": {"entrypoint": "workers.recipes.digits:build", "steps": 8, "batch": {"global_size": 32}},
            "space": {"optimizer.lr": {"log_uniform": [1e-4, 1e-1]}},
            "metric": "loss",
            "mode": "min",
            "pruner": "none",
            "trials": 2,
            "parallel": 1,
        }
        made = str(self.client.submit_sweep(spec)["id"])
        self.accepted[key] = made
        return lambda: self.client.get(f"/sweeps/{made}")["state"] in ENDED_SWEEPS

    def _stray(self, key: str) -> Callable[[], bool]:
        """An actor that bears the name of a controller whose job nobody knows."""
        namespace, stray = self._roster.namespace, JobKey(job_id=key, attempt=1)
        options = {"name": controller_name(stray, 1), "namespace": namespace, "lifetime": "detached"}
        job_controller_actor().options(**options).remote(stray, 1, namespace)
        return lambda: options["name"] not in self._roster.names()

    def judged(self) -> list[Finding]:
        """What the oracle finds once everything has come to its end."""
        settings = self.installation.settings
        notes, saves = read_diary(settings.home / "diary"), read_saves(settings.home / "diary")

        async def look() -> list[Finding]:
            evidence = gather(settings)
            remains = ray_remains(self.record.address, evidence.installation, Path(self.record.temp_dir), {})
            return judge(Case(evidence=evidence, notes=notes, saves=saves, accepted=self.accepted, remains=remains))

        assert {note.job for note in notes} == {made for key, made in self.accepted.items() if key.startswith(JOB)}
        return asyncio.run(at_rest(look, ORPHANS_S))
