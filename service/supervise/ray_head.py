"""A Ray head of one's own: started in a session of its own, found again, watched, ended.

It outlives a `serve` that is killed; the next one takes it over when the record, the process and its
ports agree. Until it is up there is no record, and its folder alone tells whose it is. It listens on
loopback only and asks for a token.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

from service.supervise.child import STEADY_AFTER_S, pause_before_start_s
from service.supervise.home import Home, write_private
from service.supervise.log_files import open_log
from service.supervise.ports import LOOPBACK, free_port, is_free, speaks
from service.supervise.processes import Identity, identity_of, kill_all_of, terminate_leader
from service.supervise.ray_record import RayRecord, read_ray_record, write_ray_record

START_LIMIT_S = 90.0
STOP_LIMIT_S = 20.0
CLEAN_UP_LIMIT_S = 4.0  # the workers of a dead head end by themselves within 2 to 4 s
PROBE_EVERY_S = 3.0
PROBE_TIMEOUT_S = 1.0
PROBES_BEFORE_LOST = 10  # half a minute: another head costs every job its steps since the last checkpoint
ADOPT_TIMEOUT_S = 10.0  # asked only once, so for longer
OBJECT_STORE_BYTES = 200_000_000
RAY_FOLDER = "r"  # in the temporary folder; what a job uses of that lies elsewhere, also on somebody else's Ray
STARTED_LINE = b"Ray runtime started."


class HeadEvent(StrEnum):
    """What happened to the head since the last look."""

    STARTING = "starting"
    UP = "up"
    FOUND = "found"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class HeadNews:
    """``detail`` is for a person: how many CPUs, or why it was lost and when it is started again."""

    event: HeadEvent
    detail: str


def ray_environment(environment: Mapping[str, str], token_path: Path) -> dict[str, str]:
    """What the head and its drivers need in their environment before they import Ray."""
    return {
        **environment,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_path),
        # The switch that makes Ray really stay on loopback on Linux; 127.0.0.1 alone is rewritten.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Told to end, a head would wait half a minute for its actors to go; who should save has done so by then.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        # So often a node tells its head what is free: who waits for room that another has just left waits for that too.
        "RAY_raylet_report_resources_period_milliseconds": "20",
    }


def foreign_ray_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What drivers of somebody else's Ray need besides: it asks for a token wherever it found one at its start.

    A driver shows its token only when told to; where none is asked for, showing it does no harm.
    """
    found = Path(environment.get("HOME", "~")).expanduser() / ".ray" / "auth_token"
    has_token = environment.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} or found.is_file()
    return {**({"RAY_AUTH_MODE": "token"} if has_token else {}), **environment}


class RayHead:
    """One head for one home. Time comes in from a monotonic clock; not for several threads.

    ``environment`` is what its workers, and with them users' code, inherit.
    """

    def __init__(self, home: Home, num_cpus: int | None, environment: Mapping[str, str]) -> None:
        self._home = home
        self._num_cpus = num_cpus or len(os.sched_getaffinity(0))
        self._temp_dir = home.temp_dir()
        # Ray opens its own folder to everybody (mode 0777); one level up nobody else gets in.
        self._ray_dir = self._temp_dir / RAY_FOLDER
        self._environment = ray_environment(environment, home.ray_token)
        self._log = home.logs / "ray.log"
        self._record: RayRecord | None = None
        self._identity: Identity | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_up = False
        self._log_begin = 0
        self._last_port = 0
        self._started_s = 0.0
        self._next_probe_s = 0.0
        self._num_silent = 0
        self._num_quick_ends = 0
        self._start_at_s: float | None = 0.0

    @property
    def is_up(self) -> bool:
        return self._is_up

    @property
    def pid(self) -> int | None:
        return self._identity.pid if self._identity else None

    def tick(self, now_s: float) -> HeadNews | None:
        """Take over, start or look after the head; never waits longer than a probe of each of its two ports."""
        if self._record is None:
            if self._start_at_s is None or now_s < self._start_at_s:
                return None
            return self._adopt(now_s) or self._start(now_s)
        if not self._is_up:
            return self._look_at_start(now_s)
        return self._look_at_running(now_s)

    def stop(self) -> bool:
        """End the head and all that belongs to it, within half a minute; gives whether it went by itself.

        One that is not up yet is not waited for: it holds nothing, and does not end when told.
        """
        self._start_at_s = None
        is_starting = self._record is not None and not self._is_up
        went = self._end(self._record or read_ray_record(self._home.ray_file), 0.0 if is_starting else STOP_LIMIT_S)
        went = went or is_starting
        shutil.rmtree(self._ray_dir, ignore_errors=True)
        return went

    def _adopt(self, now_s: float) -> HeadNews | None:
        """The head that an earlier `serve` left behind, when it is really ours and answers."""
        record = read_ray_record(self._home.ray_file)
        if record is None or not record.is_own:
            return None
        self._last_port = record.port
        identity = Identity(record.pid, record.started_at)
        is_whole = identity.is_alive() and record.temp_dir == str(self._temp_dir)
        if not is_whole or _silent_part(record, ADOPT_TIMEOUT_S):
            self._end(record, CLEAN_UP_LIMIT_S)
            return None
        self._record, self._identity, self._is_up = record, identity, True
        self._started_s, self._num_silent = now_s, 0
        cpus = "" if record.num_cpus == self._num_cpus else f"; it keeps its {record.num_cpus} CPUs until it is stopped"
        return HeadNews(HeadEvent.FOUND, f"process {record.pid}, {record.num_cpus} CPUs{cpus}")

    def _start(self, now_s: float) -> HeadNews:
        kill_all_of(self._ray_dir)
        if not self._home.ray_token.exists():
            write_private(self._home.ray_token, secrets.token_hex(32))
        # The same port as before where it can be had: drivers that still try to reach it find the new head.
        self._last_port = self._last_port if self._last_port and is_free(self._last_port) else free_port()
        raylet_port = free_port()
        log = open_log(self._log)
        self._log_begin = os.fstat(log).st_size
        self._process = subprocess.Popen(
            self._command(self._last_port, raylet_port),
            env=self._environment,
            cwd=self._temp_dir,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.close(log)
        self._identity = identity_of(self._process.pid)
        self._record = RayRecord(
            address=f"{LOOPBACK}:{self._last_port}",
            is_own=True,
            pid=self._identity.pid,
            started_at=self._identity.started_at,
            temp_dir=str(self._temp_dir),
            token_path=str(self._home.ray_token),
            num_cpus=self._num_cpus,
            raylet_port=raylet_port,
        )
        self._started_s, self._start_at_s, self._num_silent = now_s, None, 0
        return HeadNews(HeadEvent.STARTING, f"process {self._identity.pid}")

    def _command(self, port: int, raylet_port: int) -> list[str]:
        return [
            *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--head", "--block"),
            *(f"--node-ip-address={LOOPBACK}", f"--port={port}", f"--node-manager-port={raylet_port}"),
            # Ray's client server has a fixed port unless told; without its dependency the option is refused.
            *((f"--ray-client-server-port={free_port()}",) if find_spec("grpc") else ()),
            *("--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0"),
            # The monitor is of use to an autoscaler only, and tells its metrics to whoever asks at a fixed port.
            *("--include-dashboard=false", "--no-monitor", "--disable-usage-stats"),
            *(f"--num-cpus={self._num_cpus}", f"--object-store-memory={OBJECT_STORE_BYTES}"),
            f"--temp-dir={self._ray_dir}",
        ]

    def _look_at_start(self, now_s: float) -> HeadNews | None:
        assert self._record is not None
        if not self._is_alive():
            return self._lose(now_s, "it ended while starting")
        if self._says_started() and not _silent_part(self._record, PROBE_TIMEOUT_S):
            write_ray_record(self._home.ray_file, self._record)
            self._is_up, self._next_probe_s = True, now_s + PROBE_EVERY_S
            return HeadNews(HeadEvent.UP, f"{self._num_cpus} CPUs, token on, loopback only")
        if now_s - self._started_s > START_LIMIT_S:
            return self._lose(now_s, f"it was not up after {START_LIMIT_S:.0f} s")
        return None

    def _look_at_running(self, now_s: float) -> HeadNews | None:
        assert self._record is not None
        if not self._is_alive():
            return self._lose(now_s, "its process ended")
        if now_s < self._next_probe_s:
            return None
        self._next_probe_s = now_s + PROBE_EVERY_S
        silent = _silent_part(self._record, PROBE_TIMEOUT_S)
        self._num_silent = self._num_silent + 1 if silent else 0
        if self._num_silent >= PROBES_BEFORE_LOST:
            return self._lose(now_s, f"{silent} said nothing {PROBES_BEFORE_LOST} times")
        return None

    def _lose(self, now_s: float, why: str) -> HeadNews:
        self._end(self._record, CLEAN_UP_LIMIT_S)
        self._num_quick_ends = 1 if now_s - self._started_s >= STEADY_AFTER_S else self._num_quick_ends + 1
        pause_s = pause_before_start_s(self._num_quick_ends)
        self._start_at_s = now_s + pause_s
        return HeadNews(HeadEvent.LOST, f"{why}; started again in {pause_s:.1f} s (log: {self._log})")

    def _end(self, record: RayRecord | None, wait_s: float) -> bool:
        """End the recorded head, else only what is left in its folder. The record's file goes first."""
        self._home.ray_file.unlink(missing_ok=True)
        if record is not None and record.is_own:
            went = terminate_leader(Identity(record.pid, record.started_at), Path(record.temp_dir), wait_s)
        else:
            went = not kill_all_of(self._ray_dir)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=1.0)
        self._process, self._record, self._identity, self._is_up = None, None, None, False
        return went

    def _is_alive(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            return False
        return self._identity is not None and self._identity.is_alive()

    def _says_started(self) -> bool:
        with self._log.open("rb") as stream:
            stream.seek(self._log_begin)
            return STARTED_LINE in stream.read()


def _silent_part(record: RayRecord, timeout_s: float) -> str:
    """Which of the head's two processes gives no sign of life, in words; empty where both do.

    Without the raylet no actor starts and none is told from a dead one, while all else goes on answering.
    """
    ports = {"its port": record.port, "its raylet's port": record.raylet_port}
    return next((f"{name} {port}" for name, port in ports.items() if not speaks(port, timeout_s)), "")
