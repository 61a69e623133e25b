"""What the tests of commands share: an API process over a home of its own, and what a command left."""

from __future__ import annotations

import asyncio
import io
import os
import re
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from service.client import Client
from service.folders import token_file
from service.store.opening import Store, open_store
from service.supervise.home import Home
from tests.service.given import Clock
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


class Terminal(io.StringIO):
    """Takes what is written, as a terminal would."""

    def isatty(self) -> bool:
        return True

    @property
    def shown(self) -> str:
        """All of it, without colours and movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())


@contextmanager
def terminal() -> Iterator[Terminal]:
    """One of 80 characters a line, in place of standard output."""
    taking = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"TERM": "xterm", "COLUMNS": "80"}.items():
            patch.setenv(name, value)
        patch.setattr(sys, "stdout", taking)
        yield taking


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


@contextmanager
def stranger(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address of a server that is not Concertina and answers each GET alike."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def play(api: Api, part: Callable[[Store, Clock], Awaitable[None]]) -> None:
    """Do what the reconciler would, on the API's database."""

    async def run() -> None:
        clock = Clock()
        store = open_store(f"sqlite:///{api.home / 'concertina.db'}", clock)
        try:
            await part(store, clock)
        finally:
            await store.close()

    asyncio.run(run())
