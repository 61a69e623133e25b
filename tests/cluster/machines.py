"""Two machines on one: a Ray of the test's own whose second node lives in a network namespace, behind a cable.

The service attaches to it as to a company's Ray. Everything is named after the test's process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.supervise.ports import free_port
from tests.benchmarks import links
from tests.cluster.foreign_ray import drain_node, end_ray, start_head, start_node

_LISTEN = """import socket, sys
listener = socket.create_server((sys.argv[2], 0))
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"."], [listener.fileno()])
"""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)


@dataclass
class Machines:
    """``here`` and ``there`` are the nodes' addresses; ``folder`` holds all of Ray's files and is its user's home."""

    folder: Path
    here: str
    there: str
    port: int
    space: str
    cable: str

    @property
    def address(self) -> str:
        """Where Ray's head answers."""
        return f"{self.here}:{self.port}"

    @property
    def token(self) -> Path:
        """Where everybody whose home is ``folder`` finds what Ray asks for."""
        return self.folder / ".ray" / "auth_token"

    @property
    def identity(self) -> dict[str, str]:
        """The environment in which Ray's commands show the token."""
        return {"HOME": str(self.folder), "RAY_AUTH_MODE": "token"}

    @property
    def disk(self) -> Path:
        """What the other machine has in the place of ``folder``: a driver takes the node whose files it finds there."""
        return self.folder.with_name(f"{self.folder.name}-disk")

    @property
    def inside(self) -> list[str]:
        """What starts a command on the other machine."""
        mounted = 'mount --bind "$0" "$1" && shift && exec "$@"'
        return [*self._in_space, "sh", "-c", mounted, str(self.disk), str(self.folder)]

    @property
    def _in_space(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.space)

    def is_told_there(self, text: str) -> bool:
        """Whether an actor on the other machine has written this."""
        return any(text in file.read_text(errors="replace") for file in self.disk.glob("session_*/logs/worker-*.out"))

    def start_head(self, num_cpus: int) -> None:
        """Ray's head, on this machine."""
        place = (f"--node-ip-address={self.here}", f"--port={self.port}")
        start_head(self.folder, *place, f"--num-cpus={num_cpus}", variables=self.identity)

    def start_there(self, num_cpus: int) -> None:
        """A node on the other machine."""
        flags = (f"--address={self.address}", f"--node-ip-address={self.there}", f"--num-cpus={num_cpus}")
        start_node(self.folder, "there", *flags, variables=self.identity, inside=self.inside)

    def listen_there(self) -> socket.socket:
        """A socket of this process that listens on a free port of the other machine."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            command = (sys.executable, "-c", _LISTEN, str(theirs.fileno()), self.there)
            subprocess.run([*self.inside, *command], check=True, pass_fds=[theirs.fileno()], timeout=20)
            _, (listener,), _, _ = socket.recv_fds(ours, 1, 1)
        return socket.socket(fileno=listener)

    def announce_end(self, node_id: str, after_s: int) -> None:
        """Tell Ray's head, as an autoscaler does, that the node is taken away after so many seconds."""
        drain_node(self.folder, self.address, node_id, after_s, variables=self.identity)

    def shape(self, mbit: float) -> None:
        """The cable carries so much from now on, either way."""
        links.shape(self.cable, mbit)
        links.shape(links.INTERFACE, mbit, self._in_space)

    def unshape(self) -> None:
        """The shaped cable is as fast again as the machine."""
        links.unshape(self.cable)
        links.unshape(links.INTERFACE, self._in_space)

    def cut(self) -> None:
        """Pull the cable: nothing gets through, nobody is told, and everything runs on."""
        _run("ip", "link", "set", self.cable, "down")

    def mend(self) -> None:
        """Put the cable back."""
        _run("ip", "link", "set", self.cable, "up")

    def lose_there(self) -> None:
        """The other machine loses its power: nothing of it can even say goodbye."""
        self.cut()
        self._kill_there()

    def renew_there(self, num_cpus: int) -> None:
        """The other machine starts again, with its cable in place."""
        self._kill_there()
        self.mend()
        self.start_there(num_cpus)

    def _kill_there(self) -> None:
        for pid in self.pids_there():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for folder in self.disk.glob("session_*"):
            shutil.rmtree(folder, ignore_errors=True)  # temporary files do not outlive a machine's power

    def pids_there(self) -> set[int]:
        """Processes on the other machine."""
        told = subprocess.run(["ip", "netns", "pids", self.space], check=True, capture_output=True, timeout=20)
        return {int(pid) for pid in told.stdout.split()}

    def end(self) -> None:
        """Everything that was started ends, and the cable and the other machine go."""
        self._kill_there()
        subprocess.run(["ip", "netns", "del", self.space], check=False, timeout=20)
        subprocess.run(["ip", "link", "del", self.cable], check=False, timeout=20, capture_output=True)
        end_ray(self.folder)


@contextmanager
def two_machines(cpus_here: int, cpus_there: int) -> Iterator[Machines]:
    """A Ray over both machines; all of it ends with the block."""
    with wired_machines() as machines:
        machines.start_head(cpus_here)
        machines.start_there(cpus_there)
        yield machines


@contextmanager
def wired_machines() -> Iterator[Machines]:
    """Both machines, still without a Ray; whatever was started ends with the block."""
    tag = os.getpid()
    net = f"10.231.{tag % 250}"
    folder = Path(tempfile.mkdtemp(prefix="ct-machines-"))
    machines = Machines(
        folder=folder, here=f"{net}.1", there=f"{net}.2", port=free_port(), space=f"ct{tag}", cable=f"ct{tag}a"
    )
    machines.token.parent.mkdir()
    machines.token.write_text(secrets.token_hex(32))
    shutil.copytree(folder, machines.disk)
    try:
        _run("ip", "netns", "add", machines.space)
        _run(
            "ip",
            "link",
            "add",
            machines.cable,
            "type",
            "veth",
            "peer",
            "name",
            links.INTERFACE,
            "netns",
            machines.space,
        )
        _run("ip", "addr", "add", f"{machines.here}/24", "dev", machines.cable)
        _run("ip", "link", "set", machines.cable, "up")
        own = links.INTERFACE
        for command in (f"addr add {machines.there}/24 dev {own}", f"link set {own} up", "link set lo up"):
            _run("ip", "-n", machines.space, *command.split())
        yield machines
    finally:
        machines.end()
