"""A machine on this one: a network namespace at the end of a cable, with a disk of its own where Ray's files lie.

Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import links


def run(command: str) -> None:
    """A command without quotes in it. Raises CalledProcessError."""
    subprocess.run(command.split(), check=True, capture_output=True, timeout=20)


def own_net(first: int) -> str:
    """The beginning of addresses that no other process has: from 10.``first`` on, ten second bytes."""
    number = os.getpid()
    return f"10.{first + number // 250 % 10}.{number % 250}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FarMachine:
    """``space`` is its namespace, ``cable`` the end of its cable that lies here.

    ``home`` is the folder of Ray's files, which it has others in the place of: a driver takes the node whose files it
    finds there.
    """

    space: str
    cable: str
    address: str
    home: Path

    @property
    def disk(self) -> Path:
        """Where those others lie, seen from here."""
        return self.home.with_name(f"{self.home.name}-{self.space}-disk")

    @property
    def inside(self) -> list[str]:
        """What starts a command there."""
        mounted = 'mount --bind "$0" "$1" && shift && exec "$@"'
        return [*self._in_space, "sh", "-c", mounted, str(self.disk), str(self.home)]

    @property
    def _in_space(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.space)

    def wire(self) -> None:
        """Make it, with the token that is in ``home`` by now; what its cable hangs on is the caller's business."""
        shutil.copytree(self.home / ".ray", self.disk / ".ray")
        own = links.INTERFACE
        run(f"ip netns add {self.space}")
        run(f"ip link add {self.cable} type veth peer name {own} netns {self.space}")
        # No address by itself: that would come at any time after this, and whenever the cable is put back.
        run(f"ip link set {self.cable} addrgenmode none")
        run(f"ip link set {self.cable} up")
        for command in (f"addr add {self.address}/24 dev {own}", f"link set {own} up", "link set lo up"):
            run(f"ip -n {self.space} {command}")

    def shape(self, mbit: float) -> None:
        """The cable carries so much from now on, either way."""
        links.shape(self.cable, mbit)
        links.shape(links.INTERFACE, mbit, self._in_space)

    def unshape(self) -> None:
        """The shaped cable is as fast again as this machine."""
        links.unshape(self.cable)
        links.unshape(links.INTERFACE, self._in_space)

    def pids(self) -> set[int]:
        """Processes there. Raises CalledProcessError where there is no such machine."""
        told = subprocess.run(["ip", "netns", "pids", self.space], check=True, capture_output=True, timeout=20)
        return {int(pid) for pid in told.stdout.split()}

    def kill(self) -> None:
        """It loses its power: its processes, and temporary files, which do not outlive that."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for folder in self.disk.glob("session_*"):
            shutil.rmtree(folder, ignore_errors=True)
        (self.disk / "ray_current_cluster").unlink(missing_ok=True)

    def end(self) -> None:
        """Everything that was started there ends, and it goes with its cable, as far as it was made."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self.kill()
        for command in (f"ip netns del {self.space}", f"ip link del {self.cable}"):
            subprocess.run(command.split(), check=False, capture_output=True, timeout=20)
