"""What the tests of commands share: an API process over a home of its own, and what a command left."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.client import Client
from service.folders import token_file
from service.supervise.home import Home
from tests.waiting import LIMIT_S, wait_for

ROOT = Path(__file__).resolve().parents[3]
SPEC = {"name": "digits", "entrypoint": "workers.recipes.digits:build", "steps": 10}


@dataclass(frozen=True)
class Api:
    """A real API process over a home of its own."""

    url: str
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        """For a command in a process of its own."""
        return {"PATH": os.environ["PATH"], "CONCERTINA_URL": self.url, "CONCERTINA_HOME": str(self.home)}

    def client(self) -> Client:
        return Client(self.url, token_file(self.home).read_text().strip())


@dataclass(frozen=True)
class Done:
    """What a command left: exit code and both outputs."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@contextmanager
def running_api(home: Path) -> Iterator[Api]:
    Home(home).prepare()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        descriptor = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "service.supervise.api_process", str(descriptor)],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "CONCERTINA_HOME": str(home)},
            pass_fds=(descriptor,),
        )
        try:
            api = Api(f"http://127.0.0.1:{listener.getsockname()[1]}", home)
            wait_for("the token", token_file(home).exists)
            with api.client() as client:
                wait_for("the API", client.is_alive)
            yield api
        finally:
            process.terminate()
            process.wait(timeout=LIMIT_S)
