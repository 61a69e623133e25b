"""Two machines on one: a Ray of the test's own whose second node lives in a network namespace, behind a cable.

The service attaches to it as to a company's Ray. Everything is named after the test's process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.supervise.ports import free_port
from tests import addresses
from tests.cluster.far_machine import FarMachine, own_net, run
from tests.cluster.foreign_ray import Foreign, drain_node, end_ray, identity, ray_home, start_head, start_node

_LISTEN = """import socket, sys
listener = socket.create_server((sys.argv[2], 0))
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"."], [listener.fileno()])
"""


@dataclass
class Machines:
    """``here`` is this machine's address; ``folder`` holds all of Ray's files and is its user's home."""

    folder: Path
    here: str
    port: int
    far: FarMachine

    @property
    def there(self) -> str:
        """The other machine's address."""
        return self.far.address

    @property
    def address(self) -> str:
        """Where Ray's head answers."""
        return f"{self.here}:{self.port}"

    @property
    def foreign(self) -> Foreign:
        """For the oracle."""
        return Foreign(folder=self.folder, variables=self.identity)

    @property
    def identity(self) -> dict[str, str]:
        """The environment in which Ray's commands show the token."""
        return identity(self.folder)

    @property
    def inside(self) -> list[str]:
        """What starts a command on the other machine."""
        return self.far.inside

    def is_told_there(self, text: str) -> bool:
        """Whether an actor on the other machine has written this."""
        return any(
            text in file.read_text(errors="replace") for file in self.far.disk.glob("session_*/logs/worker-*.out")
        )

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
        self.far.shape(mbit)

    def unshape(self) -> None:
        """The shaped cable is as fast again as the machine."""
        self.far.unshape()

    def cut(self) -> None:
        """Pull the cable: nothing gets through, nobody is told, and everything runs on."""
        run(f"ip link set {self.far.cable} down")

    def mend(self) -> None:
        """Put the cable back."""
        run(f"ip link set {self.far.cable} up")

    def lose_there(self) -> None:
        """The other machine loses its power: nothing of it can even say goodbye."""
        self.cut()
        self.far.kill()

    def renew_there(self, num_cpus: int) -> None:
        """The other machine starts again, with its cable in place."""
        self.far.kill()
        self.mend()
        self.start_there(num_cpus)

    def pids_there(self) -> set[int]:
        """Processes on the other machine."""
        return self.far.pids()

    def end(self) -> None:
        """Everything that was started ends, and the cable and the other machine go."""
        with addresses.changed():
            self.far.end()
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
    net, folder = own_net(230), ray_home("ct-machines-")
    far = FarMachine(space=f"ct{tag}", cable=f"ct{tag}a", address=f"{net}.2", home=folder)
    machines = Machines(folder=folder, here=f"{net}.1", port=free_port(), far=far)
    try:
        with addresses.changed():
            far.wire()
            run(f"ip addr add {machines.here}/24 dev {far.cable}")
        yield machines
    finally:
        machines.end()
