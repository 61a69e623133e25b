"""Concertina for one measurement: its API process alone, or the whole of `serve`, with a home of its own."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from service.client import Client
from service.folders import token_file
from service.settings import Settings
from service.supervise.home import Home
from service.supervise.lock import current_holder
from service.supervise.serve import child_environment
from tests.benchmarks.figures import ROOT

START_S = 120.0
STOP_S = 60.0
LOOK_S = 0.05
API_MODULE = "service.supervise.api_process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A service that answers: its port, its token, its API's process, and how long that took to answer first."""

    port: int
    token: str
    api: psutil.Process
    ready_s: float

    def clear(self) -> None:
        """Cancel all jobs that wait."""
        with Client(f"http://127.0.0.1:{self.port}", self.token) as client:
            for job in list(client.jobs(state="QUEUED")):
                client.command(job["id"], "cancel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The API process from outside: its memory, and which of Ray's and torch's libraries are mapped into it."""

    rss_mb: float
    loaded: tuple[str, ...]


def footprint(process: psutil.Process) -> Footprint:
    """What a process holds; neither Ray nor torch can be imported without mapping a library of theirs."""
    paths = {entry.path for entry in process.memory_maps()}
    loaded = sorted({name for name in ("ray", "torch") if any(f"/site-packages/{name}/" in path for path in paths)})
    return Footprint(rss_mb=process.memory_info().rss / 1e6, loaded=tuple(loaded))


@contextmanager
def api_alone(folder: Path, database: str | None = None) -> Iterator[Running]:
    """The API process as `serve` starts it, with this database; without a reconciler jobs wait for ever."""
    home = Home(folder)
    home.prepare()
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        port = listener.getsockname()[1]
        settings = Settings(home=folder, port=port, database=database)
        begin_s = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", API_MODULE, str(listener.fileno())],
            env=child_environment(settings, os.environ),
            cwd=folder,
            pass_fds=(listener.fileno(),),
            stdout=(home.logs / "api.log").open("wb"),
            stderr=subprocess.STDOUT,
        )
        try:
            # The socket accepts before the process is there: one question is answered as soon as it can be.
            _ask(port, "/livez")
            ready_s = time.monotonic() - begin_s
            token = token_file(folder).read_text().strip()
            yield Running(port=port, token=token, api=psutil.Process(process.pid), ready_s=ready_s)
        finally:
            _end(process)


@contextmanager
def whole_service(folder: Path, num_cpus: int) -> Iterator[Running]:
    """`concertina serve`, with its reconciler and a Ray of so many CPUs."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CONCERTINA_")}
    environment["PYTHONPATH"] = str(ROOT)
    begin_s = time.monotonic()
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "service.cli.main", "serve"),
            *("--home", str(folder), "--port", "0", "--num-cpus", str(num_cpus)),
        ],
        env=environment,
        stdout=(folder.parent / "serve.log").open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        port = _announced_port(process, folder, begin_s)
        _ask(port, "/livez")
        ready_s = time.monotonic() - begin_s
        _wait_ready(port, begin_s)
        api = next(c for c in psutil.Process(process.pid).children() if API_MODULE in c.cmdline())
        yield Running(port=port, token=token_file(folder).read_text().strip(), api=api, ready_s=ready_s)
    finally:
        _end(process)
        if (temp_dir := Home(folder).remembered_temp_dir()) is not None:
            shutil.rmtree(temp_dir, ignore_errors=True)


def _announced_port(process: subprocess.Popen[bytes], folder: Path, begin_s: float) -> int:
    while (holder := current_holder(Home(folder).lock_file)) is None or not holder.url.startswith("http"):
        if process.poll() is not None or time.monotonic() - begin_s > START_S:
            raise RuntimeError(f"serve did not start; see {folder.parent / 'serve.log'}")
        time.sleep(LOOK_S)
    return int(holder.url.rsplit(":", 1)[1])


def _wait_ready(port: int, begin_s: float) -> None:
    """Until the cluster is there too, so that its start is not measured."""
    while (answer := _ask(port, "/readyz")) != b'{"status":"ready"}':
        if time.monotonic() - begin_s > START_S:
            raise TimeoutError(f"/readyz answers {answer!r} after {START_S:.0f} s")
        time.sleep(LOOK_S)


def _ask(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_S)
