"""Ray's own job submission for one measurement: a head with its dashboard, from an environment of its own."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.supervise.home import write_private
from service.supervise.inherited import inherited
from service.supervise.ports import LOOPBACK, free_port
from service.supervise.processes import identity_of, terminate_leader
from service.supervise.ray_head import ray_environment

STOP_S = 40.0
LOOK_S = 1.0
CLEAR_S = 120.0
MAX_PENDING_S = "5"
"""Ray has no way to take back a job that waits for CPUs, but gives it up after this (default: 15 minutes)."""

_ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RayJobs:
    """Where the dashboard's REST interface answers, and its token."""

    port: int
    token: str
    version: str

    def clear(self) -> None:
        """Wait until no job waits or runs."""
        deadline_s = time.monotonic() + CLEAR_S
        while left := sum(job["status"] not in _ENDED for job in self._jobs()):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{left} of Ray's jobs have not ended after {CLEAR_S:.0f} s")
            time.sleep(LOOK_S)

    def _jobs(self) -> list[dict[str, str]]:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=CLEAR_S)
        try:
            connection.request("GET", "/api/jobs/", headers={"Authorization": f"Bearer {self.token}"})
            jobs: list[dict[str, str]] = json.loads(connection.getresponse().read())
            return jobs
        finally:
            connection.close()


@contextmanager
def ray_jobs(folder: Path, python: Path, num_cpus: int) -> Iterator[RayJobs]:
    """A Ray head started with ``python``, whose environment has ``ray[default]``; ended by its process id."""
    folder.mkdir()
    token_path = folder / "token"
    token = secrets.token_hex(32)
    write_private(token_path, token)
    temp_dir = Path(tempfile.mkdtemp(prefix="ct-", dir="/tmp"))
    port = free_port()
    environment = ray_environment(inherited(os.environ), token_path)
    environment["RAY_JOB_START_TIMEOUT_SECONDS"] = MAX_PENDING_S
    process = subprocess.Popen(
        [str(python), "-m", "ray.scripts.scripts", *_options(temp_dir, port, num_cpus)],
        env=environment,
        cwd=folder,
        stdout=(folder / "ray.log").open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    identity = identity_of(process.pid)
    try:
        shown = subprocess.run(
            [str(python), "-c", "import ray; print(ray.__version__)"], capture_output=True, text=True, check=True
        )
        yield RayJobs(port=port, token=token, version=shown.stdout.strip())
    finally:
        terminate_leader(identity, temp_dir, STOP_S)
        process.wait(STOP_S)
        shutil.rmtree(temp_dir, ignore_errors=True)


def _options(temp_dir: Path, dashboard_port: int, num_cpus: int) -> list[str]:
    return [
        *("start", "--head", "--block", f"--node-ip-address={LOOPBACK}", f"--port={free_port()}"),
        *(f"--ray-client-server-port={free_port()}", "--dashboard-agent-listen-port=0"),
        *("--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats"),
        *("--include-dashboard=true", f"--dashboard-host={LOOPBACK}", f"--dashboard-port={dashboard_port}"),
        *(f"--num-cpus={num_cpus}", "--object-store-memory=200000000", f"--temp-dir={temp_dir}"),
    ]
