"""Machines with slow links on one machine: network namespaces behind bridges, each end shaped. Needs root and iproute2.

What a machine sends is shaped at its own end and what it receives at the other, as its cable would be: several that
send to one share what it can take.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PORT = 29_400
INTERFACE = "eth0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """``inside`` starts a command on it; ``counter`` has the bytes that it has sent so far, for its own processes."""

    address: str
    inside: tuple[str, ...]
    interface: str

    @property
    def counter(self) -> Path:
        """Where the kernel counts the bytes that this machine sends."""
        return Path(f"/sys/class/net/{self.interface}/statistics/tx_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """``racks`` has a number of machines for each; rates are in Mbit a second, None where nothing is shaped."""

    racks: tuple[int, ...]
    inside_mbit: float | None
    across_mbit: float | None = None


PROFILES = {
    "50mbit": Profile(racks=(4,), inside_mbit=50),
    "200mbit": Profile(racks=(4,), inside_mbit=200),
    "1gbit": Profile(racks=(4,), inside_mbit=1000),
    "racks": Profile(racks=(2, 2), inside_mbit=1000, across_mbit=50),
    "loopback": Profile(racks=(4,), inside_mbit=None),
}


@contextmanager
def machines(profile: Profile) -> Iterator[list[Machine]]:
    """The machines of all racks, in their order; they end with the block."""
    if profile.inside_mbit is None:
        yield [Machine(address="127.0.0.1", inside=(), interface="lo")] * sum(profile.racks)
        return
    tag, spaces = f"cl{os.getpid()}", list[str]()
    try:
        yield _wired(profile, tag, spaces)
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, timeout=20)


def _wired(profile: Profile, tag: str, spaces: list[str]) -> list[Machine]:
    found: list[Machine] = []
    racks = [_space(f"{tag}r{number}", spaces) for number in range(len(profile.racks))]
    for rack, num_machines in zip(racks, profile.racks, strict=True):
        _ip(rack, "link add br0 type bridge")
        _ip(rack, "link set br0 up")
        for _ in range(num_machines):
            machine = _space(f"{tag}w{len(found)}", spaces)
            _cable(machine, INTERFACE, rack, f"p{len(found)}", profile.inside_mbit)
            _ip(rack, f"link set p{len(found)} master br0")
            address = f"10.77.0.{len(found) + 1}"
            _ip(machine, f"addr add {address}/24 dev {INTERFACE}")
            inside = ("ip", "netns", "exec", machine)
            found.append(Machine(address=address, inside=inside, interface=INTERFACE))
    for number, rack in enumerate(racks[1:], 1):
        _cable(racks[0], f"u{number}", rack, f"u{number}", profile.across_mbit)
        for end in (racks[0], rack):
            _ip(end, f"link set u{number} master br0")
    return found


def _space(name: str, spaces: list[str]) -> str:
    _run(["ip", "netns", "add", name])
    spaces.append(name)
    _ip(name, "link set lo up")
    return name


def _cable(one: str, name: str, other: str, other_name: str, mbit: float | None) -> None:
    _ip(one, f"link add {name} type veth peer name {other_name} netns {other}")
    for space, end in ((one, name), (other, other_name)):
        _ip(space, f"link set {end} up")
        if mbit is not None:
            shape(end, mbit, ("ip", "netns", "exec", space))


def shape(end: str, mbit: float, inside: Sequence[str] = ()) -> None:
    """From now on an interface sends at this rate at most; ``inside`` is what starts a command where it is."""
    burst = "256kb" if mbit >= 500 else "64kb"  # a large burst hides the rate from small messages
    told = f"qdisc replace dev {end} root tbf rate {mbit:g}mbit burst {burst} latency 100ms"
    _run([*inside, "tc", *told.split()])


def unshape(end: str, inside: Sequence[str] = ()) -> None:
    """An interface that was shaped sends as fast as it can again."""
    _run([*inside, "tc", "qdisc", "del", "dev", end, "root"])


def _ip(space: str, command: str) -> None:
    _run(["ip", "-n", space, *command.split()])


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)
