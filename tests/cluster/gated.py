"""The gated task from a test's side: its bundle, its gates, and what the oracle says of it at its end."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from service.folders import JOBS
from service.packing import pack
from service.settings import load_settings
from service.supervise.processes import belonging_to
from tests.cluster.judging import assert_service_at_rest, remains_of
from tests.cluster.serving import Serving
from tests.faults.diary import Note, Saved, read_diary, read_saves
from tests.faults.evidence import gather
from tests.service.given import zip_bytes
from tests.waiting import wait_for
from workers.checkpoints import (
    DRAFTS,
    MANIFESTS,
    PIECES,
    checkpoint_names,
    list_checkpoints,
    manifest_key,
    read_manifest,
)
from workers.local_storage import LocalStorage
from workers.status import CheckpointInfo
from workers.storage import read

BATCH = 12
TESTS = Path(__file__).parents[1]
TASK = (TESTS / "cluster" / "gated_task" / "train.py", TESTS / "faults" / "diary.py")
START_S = 90.0
STEP_S = 60.0
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
FOUND_MARGIN_S = 5.0
"""After ``liveness_s`` of silence; Ray's head is to answer, and two turns of up to 2 s each may lie between."""


def gated_bundle() -> bytes:
    """The task as a user's code archive."""
    return zip_bytes({file.name: file.read_text() for file in TASK})


class Gated:
    """One job of the gated task (or of other ``code``) on a running service; ``folder`` holds its gates and diary."""

    def __init__(
        self, served: Serving, folder: Path, steps: int = 24, code: Path | None = None, **changes: Any
    ) -> None:
        self.served, self.folder, self.steps = served, folder, steps
        self.num_samples = steps * BATCH // 2
        self._spoilt: set[int] = set()
        config = {"folder": str(folder), "num_samples": self.num_samples, **changes.pop("config", {})}
        self._gates: list[int | str] = [
            *config.get("gates", []),
            *(f"publish-{step}" for step in config.get("publishes", [])),
            *(["state"] if "hands_over_after" in config else []),
            *(["build"] if "waits_to_build" in config else []),
        ]
        with served.client() as client:
            bundle = client.upload(gated_bundle() if code is None else pack(code).data)["id"]
            spec = {
                "name": "gated",
                "entrypoint": "train:build",
                "bundle": bundle,
                "config": config,
                "steps": steps,
                "workers": {"min": 1, "max": 2},
                "batch": {"global_size": BATCH, "micro_size": BATCH},
                "optimizer": {"lr": 0.01},
                "checkpoint": {"every_steps": 5},
                **changes,
            }
            self.id = str(client.submit(spec)["id"])

    def job(self) -> dict[str, Any]:
        with self.served.client() as client:
            return client.job(self.id)

    def wait_at(self, gate: int | str, num_workers: int) -> list[int]:
        """Wait until that many workers stand at a gate (a step, or a name); their process ids."""

        found: list[int] = []

        def are_there() -> bool:
            self._assert_alive()
            found[:] = self.standing_at(gate)
            return len(found) == num_workers

        wait_for(f"{num_workers} workers at gate {gate}", are_there, START_S)
        return found

    def standing_at(self, gate: int | str) -> list[int]:
        """The process ids of those who stand at a gate now, without asking the service."""
        pids = [int(path.name.rpartition("-")[2]) for path in self.folder.glob(f"at-{gate}-*")]
        return [pid for pid in pids if psutil.pid_exists(pid)]

    def workers(self) -> list[dict[str, Any]]:
        """Its workers as the cluster page has them."""
        nodes = self.served.cluster()["nodes"]
        return [worker for node in nodes for worker in node["workers"] if worker["job_id"] == self.id]

    def ranks_at(self, step: int, num_workers: int) -> list[int]:
        """As ``wait_at``, in the order of their ranks."""
        pids = self.wait_at(step, num_workers)
        return sorted(pids, key=lambda pid: int((self.folder / f"at-{step}-{pid}").read_text()))

    def wait_newcomer(self, known: list[int]) -> int:
        """Wait until another process stands ready, waiting for the boundary at which it is let in; its id."""

        come: list[int] = []

        def are_there() -> bool:
            mine = [worker for worker in self.workers() if worker["pid"] not in known]
            come[:] = [int(worker["pid"]) for worker in mine if worker["phase"] in ("ready", "rendezvous")]
            return bool(come)

        wait_for("a newcomer", are_there, START_S)
        return come[0]

    def scale(self, num_workers: int) -> None:
        """Ask for another size, and wait until it is wanted."""
        with self.served.client() as client:
            client.scale(self.id, num_workers, f"wants {num_workers}")
        wait_for("the wish", lambda: self.job()["workers"]["desired"] == num_workers)

    def wait_told(self, step: int) -> None:
        """Wait until the point of a step is in the store; progress is told earlier, by a status of its own."""
        wait_for(f"step {step} in the store", lambda: any(p["step"] >= step for p in self.points()), STEP_S)

    def open(self, gate: int | str) -> None:
        (self.folder / f"go-{gate}").touch()

    def shut(self, gate: int | str) -> None:
        """Whoever comes from now on waits."""
        (self.folder / f"go-{gate}").unlink()

    def end(self) -> None:
        """Leave nothing running, however the test ended."""
        for gate in self._gates:
            self.open(gate)
        if self.job()["state"] not in ENDED:
            with self.served.client() as client:
                client.command(self.id, "cancel")
        wait_for("the end", lambda: self.job()["state"] in ENDED, STEP_S)

    def wait_done(self) -> dict[str, Any]:
        def has_ended() -> bool:
            self._assert_alive()
            return self.job()["state"] == "SUCCEEDED"

        wait_for("the job's end", has_ended, START_S)
        return self.job()

    def timeline(self) -> list[dict[str, Any]]:
        with self.served.client() as client:
            return client.timeline(self.id)

    def kinds(self) -> list[str]:
        return [row["kind"] for row in self.timeline()]

    def found_after_s(self, since: float) -> float:
        """Seconds from a moment of this machine's clock to the plan by which the one lost worker was left behind."""
        (lost,) = [row for row in self.timeline() if row["kind"] == "worker_lost"]
        return datetime.fromisoformat(lost["time"]).timestamp() - since

    def silent_s(self) -> float:
        """How long those that were left behind had not answered, by the controller's count: its late turns are none."""
        (told,) = [row["reason"] for row in self.timeline() if row["kind"] in ("worker_lost", "restore")]
        (silent_s,) = re.findall(r"silent for ([\d.]+) s", told)
        return float(silent_s)

    def events(self) -> list[tuple[str, str | None]]:
        with self.served.client() as client:
            found = client.get(f"/jobs/{self.id}/events")["events"]
        return [(event["to"], event["reason"]) for event in found]

    def points(self) -> list[dict[str, Any]]:
        with self.served.client() as client:
            return list(client.get(f"/jobs/{self.id}/metrics", keys="loss,workers", max_points=10_000)["points"])

    def logs(self) -> str:
        with self.served.client() as client:
            return client.logs(self.id).text

    def notes(self) -> list[Note]:
        return read_diary(self.folder / "diary")

    def saves(self) -> list[Saved]:
        """When checkpoints became whole, without those that the test has spoilt since."""
        return [save for save in read_saves(self.folder / "diary") if save.saved not in self._spoilt]

    def seen_by_the_oracle(self) -> list[str]:
        """The actors that it finds of this job now."""
        installation = gather(load_settings({"home": self.served.home}, {})).installation
        found = remains_of(self.served.home, installation, self.served.foreign).names
        return [name for name in found if self.id in name]

    def loses_all(self, times: int = 1) -> None:
        """Tell the oracle that all its workers are killed at once, or the cluster."""
        self.served.lost[self.id] += times

    def assert_nothing_broken(self) -> None:
        """Ask the oracle about this job and all that is left."""
        assert any(note.job == self.id for note in self.notes()), "no worker noted a step"
        assert self.saves() or not checkpoint_names(self._storage()), "no worker noted a checkpoint"
        assert_service_at_rest(self.served, notes=self.notes(), saves=self.saves())

    def wait_saved(self, step: int) -> None:
        """Until there is a complete checkpoint of that step or a later one."""

        def is_saved() -> bool:
            return any(info.step >= step for info in list_checkpoints(self._storage()))

        wait_for(f"the checkpoint of step {step}", is_saved)

    def damage_newest(self) -> CheckpointInfo:
        """Change one byte of a weight in the newest complete checkpoint, and tell the oracle."""
        storage = self._storage()
        manifest = read_manifest(storage, checkpoint_names(storage)[-1])
        assert manifest is not None
        weight = next(iter(manifest.weights.values()))
        data = bytearray(read(storage, weight.piece))
        data[weight.offset] ^= 1
        storage.write(weight.piece, [data])
        self._spoilt.add(manifest.info.step)
        return manifest.info

    def assert_tidy(self) -> None:
        """Of saves that came to nothing no draft is left, no half-written file, and no piece that nobody needs."""
        storage = self._storage()
        names = checkpoint_names(storage)
        manifests = [manifest for name in names if (manifest := read_manifest(storage, name)) is not None]
        assert storage.keys(DRAFTS) == []
        assert storage.keys(MANIFESTS) == [manifest_key(name) for name in names]
        assert set(storage.keys(PIECES)) == {piece for manifest in manifests for piece in manifest.pieces}

    def _storage(self) -> LocalStorage:
        return LocalStorage(self.served.home / "storage" / JOBS / self.id / "checkpoints")

    def _assert_alive(self) -> None:
        job = self.job()
        assert job["state"] not in ("FAILED", "CANCELLED"), f"{job['reason']}, {self.served.account(self.id)}"


Submit: TypeAlias = Callable[..., Gated]


def actor_pids(served: Serving, actor: str) -> list[int]:
    """Processes of an actor class in this service's Ray."""
    record = served.ray()
    found = belonging_to(Path(record.temp_dir), record.pid)
    return [p.pid for p in found if _is_of(p, actor)]


def actors(actor: str) -> list[int]:
    """Processes of an actor class in any Ray of this machine."""
    return [process.pid for process in psutil.process_iter() if _is_of(process, actor)]


def _is_of(process: psutil.Process, actor: str) -> bool:
    return _title(process).startswith(f"ray::{actor}")


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def sigkill(*pids: int) -> float:
    """Kill at once; when that was."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return time.time()
