"""The reconciler dies between two calls on a real Ray, at one point after another, and the oracle is asked.

    python -m tests.faults.ray_points FOLDER

FOLDER holds the home of a Ray, as ``own_ray`` makes it, whose variables are in the environment. Ends with 1, and the
findings in lines, where anything was found.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import ray

from service.client import Client
from service.folders import token_file
from service.migrations.upgrade import upgrade
from service.settings import load_settings
from service.supervise.home import Home
from service.supervise.ray_record import RayRecord, read_ray_record
from service.sweep_records import ENDED_SWEEPS
from tests.cluster.gated import ENDED, gated_bundle
from tests.faults.crash_points import CrashPoint, When
from tests.faults.diary import read_diary, read_saves
from tests.faults.evidence import gather
from tests.faults.findings import Finding, at_rest
from tests.faults.oracle import Case, judge
from tests.faults.processes import API, RECONCILER, Installation
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

    def struck(self, number: int) -> Callable[[], bool]:
        """The reconciler comes to a point and dies; gives what tells whether what was begun there is over."""
        method, what = POINTS[number]
        point = CrashPoint(method=method, when=When.AFTER)
        self.installation.start(RECONCILER, point)
        is_over = {JOB: self._job, SWEEP: self._sweep, STRAY: self._stray}[what](f"{what}-{number}")
        told = self.installation.told
        wait_for(f"the point {point}", lambda: not self.installation.is_alive(RECONCILER), END_S, told)
        assert self.installation.has_struck(RECONCILER, point), f"it died elsewhere: {told()}"
        return is_over

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
        namespace = gather(self.installation.settings).installation
        address = self.record.address
        if not ray.is_initialized():
            ray.init(address=address, namespace=namespace, log_to_driver=False, configure_logging=False)
        stray = JobKey(job_id=key, attempt=1)
        options = {"name": controller_name(stray, 1), "namespace": namespace, "lifetime": "detached"}
        job_controller_actor().options(**options).remote(stray, 1, namespace)
        return lambda: options["name"] not in Roster(namespace).names()

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


def main() -> int:
    """Play all points and judge."""
    folder = Path(sys.argv[1])
    record = read_ray_record(Home(folder / "home").ray_file)
    assert record is not None
    Home(folder / "service").prepare()
    given = {"home": folder / "service", "ray_address": record.address, "leader_lease_s": 2.0}
    settings = load_settings(given, {})
    upgrade(settings.database_url)
    with Installation(settings, names=(API,), ray=record) as installation:
        token = token_file(settings.home)
        wait_for("the API's token", token.exists)
        with Client(installation.url, token.read_text().strip()) as client:
            scene = Scene(record, installation, client, client.upload(gated_bundle())["id"])
            begun = {point: scene.struck(number) for number, point in enumerate(POINTS)}
            installation.start(RECONCILER)
            for point, is_over in begun.items():
                wait_for(f"the end of what was begun at {point}", is_over, END_S, installation.told)
            found = scene.judged()
    print(*found, sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
