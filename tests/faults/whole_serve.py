"""The real `serve` in place of an installation's own processes, over the same home and Ray, to be killed itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import psutil

from service.supervise.home import Home
from service.supervise.ports import LOOPBACK, free_port
from tests.waiting import LIMIT_S, wait_for


class WholeServe:
    """One `serve` after the other on one port. Ray's environment is this process's."""

    def __init__(self, home: Home, ray_address: str) -> None:
        self._home = home
        self._port = free_port()
        self._flags = ("--home", str(home.path), "--port", str(self._port), "--ray-address", ray_address)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    def start(self) -> None:
        """Start it; whether it comes up shows when it is called."""
        with (self._home.logs / "serve.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "service.cli.main", "serve", *self._flags],
                env=dict(os.environ),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def assert_runs(self) -> None:
        """Fails with its last words when it has ended by itself."""
        assert self._process is not None
        assert self._process.poll() is None, (self._home.logs / "serve.log").read_text()[-2000:]

    def kill(self) -> None:
        """SIGKILL; its children must end with it."""
        assert self._process is not None
        children = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait(LIMIT_S)
        wait_for("the end of the children of serve", lambda: not any(child.is_running() for child in children))

    def clear(self) -> None:
        """End what runs, and remove what lies outside of the home."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        if (temp_dir := self._home.remembered_temp_dir()) is not None:
            shutil.rmtree(temp_dir, ignore_errors=True)
