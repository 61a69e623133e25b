"""The gated task from a test's side: its bundle, its gates, and what the oracle says of it at its end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil

from service.packing import pack
from service.settings import load_settings
from service.supervise.processes import belonging_to
from tests.cluster.serving import Serving
from tests.faults.diary import Note, read_diary
from tests.faults.evidence import gather
from tests.faults.findings import assert_nothing_found
from tests.faults.oracle import Case, judge
from tests.service.given import zip_bytes
from tests.waiting import wait_for

BATCH = 12
TESTS = Path(__file__).parents[1]
TASK = (TESTS / "cluster" / "gated_task" / "train.py", TESTS / "faults" / "diary.py")
START_S = 90.0
STEP_S = 60.0
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


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
        config = {"folder": str(folder), "num_samples": self.num_samples, **changes.pop("config", {})}
        self._gates: list[int] = config.get("gates", [])
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

    def wait_at(self, step: int, num_workers: int) -> list[int]:
        """Wait until that many workers stand at a gate; their process ids."""

        def living() -> list[int]:
            self._assert_alive()
            pids = [int(path.name.split("-")[2]) for path in self.folder.glob(f"at-{step}-*")]
            return [pid for pid in pids if psutil.pid_exists(pid)]

        wait_for(f"{num_workers} workers at step {step}", lambda: len(living()) == num_workers, START_S)
        return living()

    def wait_told(self, step: int) -> None:
        """Wait until the point of a step is in the store; progress is told earlier, by a status of its own."""
        wait_for(f"step {step} in the store", lambda: any(p["step"] >= step for p in self.points()), STEP_S)

    def open(self, step: int) -> None:
        (self.folder / f"go-{step}").touch()

    def end(self) -> None:
        """Leave nothing running, however the test ended."""
        for step in self._gates:
            self.open(step)
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

    def assert_nothing_broken(self, *, has_lost_all: bool = False) -> None:
        """Ask the oracle about this job; ``has_lost_all`` where the test killed all of its workers at once."""
        evidence = gather(load_settings({"home": self.served.home}, {}))
        assert any(note.job == self.id for note in self.notes()), "no worker noted a step"
        assert_nothing_found(judge(Case(evidence=evidence, notes=self.notes(), has_lost_all=has_lost_all)))

    def seconds_without_a_step(self, kind: str) -> float:
        """What the timeline says that a change cost."""
        (cost_s,) = [row["cost_s"] for row in self.timeline() if row["kind"] == kind]
        assert cost_s is not None
        return float(cost_s)

    def _assert_alive(self) -> None:
        job = self.job()
        assert job["state"] not in ("FAILED", "CANCELLED"), (job["reason"], self.logs()[-3000:])


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
