"""Two racks on one machine: two machines of the first, this one and ``near``, and one of the second, ``far``.

All three hang on a bridge, ``far`` by a slow cable. They are a Ray of the test's own, to which the service attaches.
Everything is named after the test's process.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.supervise.ports import free_port
from tests import addresses
from tests.cluster.far_machine import FarMachine, own_net, run
from tests.cluster.foreign_ray import Foreign, end_ray, identity, ray_home, start_head, start_node
from workers.racks import LABEL

HERE, NEAR, FAR = "here", "near", "far"


@dataclass(frozen=True, slots=True)
class Racked:
    """``folder`` holds all of Ray's files and is its user's home; ``here`` is this machine's address."""

    folder: Path
    here: str
    port: int
    bridge: str
    others: Mapping[str, FarMachine]

    @property
    def address(self) -> str:
        """Where Ray's head answers."""
        return f"{self.here}:{self.port}"

    @property
    def foreign(self) -> Foreign:
        """For the oracle."""
        return Foreign(folder=self.folder, variables=identity(self.folder))

    @property
    def addresses(self) -> dict[str, str]:
        """By machine."""
        return {HERE: self.here, **{name: machine.address for name, machine in self.others.items()}}

    def start(self, labels: Mapping[str, str]) -> None:
        """A node with one CPU on each machine, with the rack that its label shall tell."""
        own = {
            machine: (f"--node-ip-address={address}", "--num-cpus=1", f"--labels={LABEL}={labels[machine]}")
            for machine, address in self.addresses.items()
        }
        variables = identity(self.folder)
        start_head(self.folder, f"--port={self.port}", *own[HERE], variables=variables)
        for name, machine in self.others.items():
            flags = (f"--address={self.address}", *own[name])
            start_node(self.folder, name, *flags, variables=variables, inside=machine.inside)

    def wire(self) -> None:
        """The bridge and the machines on it."""
        run(f"ip link add {self.bridge} type bridge")
        run(f"ip link set {self.bridge} addrgenmode none")
        run(f"ip addr add {self.here}/24 dev {self.bridge}")
        run(f"ip link set {self.bridge} up")
        for machine in self.others.values():
            machine.wire()
            run(f"ip link set {machine.cable} master {self.bridge}")

    def end(self) -> None:
        """Everything that was started ends, and the machines go."""
        with addresses.changed():
            for machine in self.others.values():
                machine.end()
            subprocess.run(["ip", "link", "del", self.bridge], check=False, capture_output=True, timeout=20)
        end_ray(self.folder)


@contextmanager
def two_racks(labels: Mapping[str, str], mbit: float) -> Iterator[Racked]:
    """A Ray over the three machines, the far one behind ``mbit``; all of it ends with the block."""
    tag, net, folder = f"ct{os.getpid()}", own_net(240), ray_home("ct-racks-")
    others = {
        name: FarMachine(space=f"{tag}{name}", cable=f"{tag}{name[0]}", address=f"{net}.{number}", home=folder)
        for number, name in enumerate((NEAR, FAR), 2)
    }
    made = Racked(folder, f"{net}.1", free_port(), f"{tag}b", others)
    try:
        with addresses.changed():
            made.wire()
        made.start(labels)
        others[FAR].shape(mbit)
        yield made
    finally:
        made.end()
