"""A Ray whose head is on another machine, and one node of it here, beside the service, as in a team's installation."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.benchmarks.lost_power import lose_power
from tests.cluster.far_machine import run
from tests.cluster.foreign_ray import Foreign, start_head, start_node
from tests.cluster.machines import Machines, wired_machines

# A driver joins any raylet that it finds among the processes that it sees, the head's first.
_HIDE = 'mount --bind "$1" "/proc/$2"; shift 2; exec "$@"'


class Beside:
    """Head and workers are ``there``; the node that can be lost and started again is ``here``."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._node: subprocess.Popen[bytes] | None = None
        self.address = f"{machines.there}:{machines.port}"

    @property
    def home(self) -> Path:
        """The home of a user who has the token of this Ray."""
        return self._machines.folder

    @property
    def foreign(self) -> Foreign:
        """For the oracle."""
        return self._machines.foreign

    @property
    def name(self) -> str:
        """What Ray calls the node beside the service."""
        return self._machines.here

    def start_head(self, num_cpus: int) -> None:
        """The head, on the other machine."""
        place = (f"--node-ip-address={self._machines.there}", f"--port={self._machines.port}")
        identity, inside = self._machines.identity, self._machines.inside
        start_head(self.home, *place, f"--num-cpus={num_cpus}", variables=identity, inside=inside)

    def start_node(self, num_cpus: int) -> None:
        """The node on this machine, in the place of one that a new head does not know."""
        if self._node is not None:
            self.lose_node()
        flags = (f"--address={self.address}", f"--node-ip-address={self.name}", f"--num-cpus={num_cpus}")
        self._node = start_node(self.home, "beside", *flags, variables=self._machines.identity)

    def replace_head(self, num_cpus: int, blind: int) -> None:
        """The head's machine is lost, and a new one has its address. ``blind`` is a process that is ``apart``."""
        self._machines.lose_there()
        self.start_head(num_cpus)
        run(f"nsenter --target={blind} --mount mount --bind {self._nothing()} /proc/{self._raylet_there()}")
        self._machines.mend()

    def lose_node(self) -> None:
        """All of the node's processes are killed at once."""
        assert self._node is not None
        lose_power(self._node.pid)
        self._node.wait(10)
        self._node = None

    def apart(self) -> list[str]:
        """What to begin a command with that must not see the head's raylet, as on a machine of its own."""
        return ["unshare", "--mount", "sh", "-euc", _HIDE, "sh", str(self._nothing()), str(self._raylet_there())]

    def _raylet_there(self) -> int:
        (raylet,) = [pid for pid in self._machines.pids_there() if psutil.Process(pid).name() == "raylet"]
        return raylet

    def _nothing(self) -> Path:
        folder = self.home / "nothing"
        folder.mkdir(exist_ok=True)
        return folder


@contextmanager
def ray_beside(cpus_there: int, cpus_here: int) -> Iterator[Beside]:
    """Such a Ray; all of it ends with the block."""
    with wired_machines() as machines:
        made = Beside(machines)
        made.start_head(cpus_there)
        made.start_node(cpus_here)
        yield made
