"""Two racks on one machine: two machines of the first, this one and ``near``, and one of the second, ``far``.

``near`` and ``far`` live in network namespaces; all three hang on a bridge, ``far`` by a slow cable. They are a Ray of
the test's own, to which the service attaches. Everything is named after the test's process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.supervise.ports import free_port
from tests.benchmarks import links
from tests.cluster.foreign_ray import end_ray, start_head, start_node
from workers.racks import LABEL

HERE, NEAR, FAR = "here", "near", "far"
AFAR = (NEAR, FAR)


@dataclass(frozen=True, slots=True)
class Racked:
    """``addresses`` are by machine; ``folder`` holds all of Ray's files and is its user's home."""

    folder: Path
    addresses: Mapping[str, str]
    port: int
    tag: str

    @property
    def address(self) -> str:
        """Where Ray's head answers."""
        return f"{self.addresses[HERE]}:{self.port}"

    def start(self, labels: Mapping[str, str]) -> None:
        """A node with one CPU on each machine, with the rack that its label shall tell."""
        variables = {"HOME": str(self.folder), "RAY_AUTH_MODE": "token"}
        own = {m: (f"--node-ip-address={a}", "--num-cpus=1", f"--labels={LABEL}={labels[m]}") for m, a in self._all}
        start_head(self.folder, f"--port={self.port}", *own[HERE], variables=variables)
        for machine in AFAR:
            disk = self.folder.with_name(f"{self.folder.name}-{machine}-disk")
            shutil.copytree(self.folder / ".ray", disk / ".ray")
            mounted = 'mount --bind "$0" "$1" && shift && exec "$@"'
            inside = ["ip", "netns", "exec", self.space(machine), "sh", "-c", mounted, str(disk), str(self.folder)]
            flags = (f"--address={self.address}", *own[machine])
            start_node(self.folder, machine, *flags, variables=variables, inside=inside)

    def shape(self, mbit: float) -> None:
        """The far machine's cable carries so much from now on, either way."""
        links.shape(self.cable(FAR), mbit)
        links.shape(links.INTERFACE, mbit, ("ip", "netns", "exec", self.space(FAR)))

    def wire(self) -> None:
        """The bridge and the machines on it."""
        bridge = f"{self.tag}b"
        _run(f"ip link add {bridge} type bridge")
        _run(f"ip addr add {self.addresses[HERE]}/24 dev {bridge}")
        _run(f"ip link set {bridge} up")
        for machine in AFAR:
            space, cable, own = self.space(machine), self.cable(machine), links.INTERFACE
            _run(f"ip netns add {space}")
            _run(f"ip link add {cable} type veth peer name {own} netns {space}")
            _run(f"ip link set {cable} master {bridge} up")
            for command in (f"addr add {self.addresses[machine]}/24 dev {own}", f"link set {own} up", "link set lo up"):
                _run(f"ip -n {space} {command}")

    def end(self) -> None:
        """Everything that was started ends, and the machines go."""
        for space in map(self.space, AFAR):
            told = subprocess.run(["ip", "netns", "pids", space], check=False, capture_output=True, timeout=20)
            for pid in told.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True, timeout=20)
        for link in (*map(self.cable, AFAR), f"{self.tag}b"):
            subprocess.run(["ip", "link", "del", link], check=False, capture_output=True, timeout=20)
        end_ray(self.folder)

    def space(self, machine: str) -> str:
        """Its network namespace."""
        return f"{self.tag}{machine}"

    def cable(self, machine: str) -> str:
        """The end of its cable at the bridge."""
        return f"{self.tag}{machine[0]}"

    @property
    def _all(self) -> list[tuple[str, str]]:
        return list(self.addresses.items())


@contextmanager
def two_racks(labels: Mapping[str, str], mbit: float) -> Iterator[Racked]:
    """A Ray over the three machines, the far one behind ``mbit``; all of it ends with the block."""
    net = f"10.232.{os.getpid() % 250}"
    addresses = {machine: f"{net}.{number}" for number, machine in enumerate((HERE, NEAR, FAR), 1)}
    made = Racked(Path(tempfile.mkdtemp(prefix="ct-racks-")), addresses, free_port(), f"ct{os.getpid()}")
    token = made.folder / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text(secrets.token_hex(32))
    try:
        made.wire()
        made.start(labels)
        made.shape(mbit)
        yield made
    finally:
        made.end()


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, timeout=20)
