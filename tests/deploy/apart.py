"""A machine within this one: mounts, processes and a network of its own, all of which end with it. Needs root."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.waiting import wait_for

COMMAND_S = 60.0
END_S = 10.0
FOLDER = "/mnt"  # of the machine within; empty at first, and in memory
_OWN = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation=private")
# Its first process reaps what others leave behind, as an init does.
_FIRST = "trap '' CHLD; ip link set lo up; mount -t proc proc /proc; exec sleep infinity"
_NETWORK = "10.231.0"  # between machines within, and nowhere else
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LISTEN = """import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[2])))
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"."], [listener.fileno()])
"""


@dataclass(frozen=True, slots=True)
class Apart:
    """``pid`` is its first process, as seen from here; paths are those of the machine within.

    Others within reach it at its ``address`` while it has neighbours.
    """

    pid: int
    address: str = f"{_NETWORK}.1"

    def command(self, *words: str) -> list[str]:
        """What carries out a command there, under this machine's root."""
        return ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--net", "--", *words]

    def run(self, *words: str, limit_s: float = COMMAND_S) -> str:
        """Carry it out; gives what it printed. Fails with what it complained of."""
        done = subprocess.run(
            self.command(*words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            env={"PATH": os.environ["PATH"]},
        )
        assert done.returncode == 0, f"{shlex.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def seen(self, path: str) -> Path:
        """A path there, from here."""
        return Path(f"/proc/{self.pid}/root{path}")

    def bind(self, source: Path | str, target: str, *, read_only: bool) -> None:
        """Let a folder or file be seen at another place, too, without what is mounted below it."""
        goal = self.seen(target)
        if self.seen(str(source)).is_dir():
            goal.mkdir(parents=True, exist_ok=True)
        else:
            goal.touch()
        self.run("mount", "--bind", str(source), target)
        if read_only:
            self.run("mount", "-o", "remount,bind,ro", target)

    def processes_of(self, user: int) -> list[str]:
        """Command lines of all that runs there as a user."""
        space = Path(f"/proc/{self.pid}/ns/pid").readlink()
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
                if process.uids().real == user and Path(f"/proc/{process.pid}/ns/pid").readlink() == space:
                    found.append(" ".join(process.cmdline()) or process.name())
        return found

    def listen(self, port: int) -> socket.socket:
        """A socket of this process that listens on the loopback of the machine within."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            command = self.command(sys.executable, "-c", _LISTEN, str(theirs.fileno()), str(port))
            subprocess.run(command, check=True, pass_fds=[theirs.fileno()], timeout=COMMAND_S)
            _, (listener,), _, _ = socket.recv_fds(ours, 1, 1)
        return socket.socket(fileno=listener)


@contextmanager
def apart() -> Iterator[Apart]:
    """Such a machine; its processes are killed at the end of the block, and its mounts go with them."""
    with _begun((), f"mount -t tmpfs tmpfs {FOLDER}; {_FIRST}") as pid:
        yield Apart(pid)


@contextmanager
def neighbours(machine: Apart, number: int) -> Iterator[list[Apart]]:
    """More machines, with processes and networks of their own but the same files, on one switch with the first."""
    _ip(machine.pid, "link add switch type bridge", "link set switch up", f"addr add {machine.address}/24 dev switch")
    try:
        with ExitStack() as stack:
            found = []
            for last in range(2, number + 2):
                pid = stack.enter_context(_begun(machine.command(), _FIRST))
                found.append(Apart(pid, f"{_NETWORK}.{last}"))
                _ip(machine.pid, f"link add p{last} type veth peer name eth0 netns {pid}")
                _ip(machine.pid, f"link set p{last} up master switch")
                _ip(pid, f"addr add {found[-1].address}/24 dev eth0", "link set eth0 up")
                # They lead nowhere, but by its way into the world a node of Ray learns its own address.
                _ip(pid, f"route add default via {machine.address}")
            _ip(machine.pid, f"route add default via {found[0].address}")
            yield found
    finally:
        _ip(machine.pid, "link del switch")


@contextmanager
def _begun(within: Sequence[str], first: str) -> Iterator[int]:
    process = subprocess.Popen([*within, "unshare", *_OWN, "sh", "-euc", first])
    begun: list[int] = []

    def is_up() -> bool:
        assert process.poll() is None, "a machine within this one could not be made"
        with contextlib.suppress(psutil.NoSuchProcess):
            inner = psutil.Process(process.pid).children(recursive=True)
            begun.extend(each.pid for each in inner if each.name() == "sleep")
        return bool(begun)

    try:
        wait_for("the machine within", is_up)
        yield begun[0]
    finally:
        for pid in begun:
            # Its parent, with which it is killed.
            os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
        process.kill()
        process.wait(END_S)


def _ip(pid: int, *commands: str) -> None:
    for command in commands:
        subprocess.run(["nsenter", f"--target={pid}", "--net", "ip", *command.split()], check=True, timeout=COMMAND_S)


@dataclass(frozen=True, slots=True)
class Root:
    """A root of its own at ``path`` of a machine within."""

    machine: Apart
    path: str

    def at(self, path: str) -> str:
        """A path below this root, as the machine within sees it."""
        return f"{self.path}{path}"

    def seen(self, path: str) -> Path:
        """A path below this root, from here."""
        return self.machine.seen(self.at(path))

    def command(
        self, words: Sequence[str], environment: Mapping[str, str], *, folder: str = "/", user: str = ""
    ) -> list[str]:
        """What carries out a command below this root; ``user`` is UID:GID, and then nothing can make it root again."""
        variables = [f"{name}={value}" for name, value in environment.items()]
        become = ["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--clear-groups"]
        become += [
            f"{option}={number}" for option, number in zip(("--reuid", "--regid"), user.split(":"), strict=False)
        ]
        within = [*(become if user else ()), "env", "-i", f"--chdir={folder}", *variables, *words]
        return self.machine.command("chroot", self.path, *within)


def debian_with_python(machine: Apart, name: str) -> Root:
    """A root with this machine's Debian and this Python in /usr/local, as in Python's image, and nothing else.

    What they consist of is mounted read-only; /etc is a copy.
    """
    root = Root(machine, f"{FOLDER}/{name}")
    for path in ("/var/lib", "/run", "/opt", "/root"):
        root.seen(path).mkdir(parents=True)
    for path in ("/tmp", "/var/tmp", "/dev/shm"):
        root.seen(path).mkdir(parents=True)
        root.seen(path).chmod(0o1777)
    for path in ("/bin", "/sbin", "/lib", "/lib64"):
        if Path(path).is_symlink():
            root.seen(path).symlink_to(Path(path).readlink())
    shutil.copytree("/etc", root.seen("/etc"), symlinks=True)
    _furnish(root)
    # As Python's image does: a shared library of this Python is found before one of Debian's.
    machine.run("chroot", root.path, "ldconfig")
    return root


def copy_root(origin: Root, name: str) -> Root:
    """Another one with the same files."""
    root = Root(origin.machine, f"{FOLDER}/{name}")
    root.machine.run("cp", "-a", "--one-file-system", origin.path, root.path)
    _furnish(root)
    return root


def _furnish(root: Root) -> None:
    """Mount what a root cannot do without."""
    machine = root.machine
    for path in ("/bin", "/sbin", "/lib", "/lib64"):
        if not Path(path).is_symlink():
            machine.bind(path, root.at(path), read_only=True)
    machine.bind("/usr", root.at("/usr"), read_only=True)
    if Path(sys.base_prefix) != Path("/usr/local"):
        machine.bind(sys.base_prefix, root.at("/usr/local"), read_only=True)
    for device in _DEVICES:
        machine.bind(f"/dev/{device}", root.at(f"/dev/{device}"), read_only=False)
    root.seen("/proc").mkdir(exist_ok=True)
    machine.run("mount", "-t", "proc", "proc", root.at("/proc"))
