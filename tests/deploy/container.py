"""Containers of the image, as Kubernetes or compose would run them: a read-only root, and only such mounts as they say.

What their namespaces and cgroups add is left out: containers of one machine share its network and processes, and
nobody limits memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.deploy.apart import FOLDER, Root, copy_root
from tests.deploy.image import Stage

COMMAND_S = 120.0
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Container:
    """One of the image's, with its own view of the root."""

    image: Stage
    root: Root
    environment: Mapping[str, str]

    def command(self, words: Sequence[str]) -> list[str]:
        """What carries out a command in it."""
        return self.image.command(words, self.environment, root=self.root)

    def run(self, words: Sequence[str], given: str = "") -> subprocess.CompletedProcess[str]:
        """Carry one out to its end; ``given`` is its standard input."""
        command = self.command(words)
        return subprocess.run(command, check=False, input=given, capture_output=True, text=True, timeout=COMMAND_S)

    def start(self, words: Sequence[str]) -> Main:
        """What it is for."""
        return Main(subprocess.Popen(self.command(words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))


@dataclass(frozen=True, slots=True)
class Main:
    """The process that a container is for."""

    outer: subprocess.Popen[str]

    @property
    def is_running(self) -> bool:
        return self.outer.poll() is None

    def stop(self, grace_s: float) -> tuple[int, str]:
        """Tell it to end, as whoever runs containers does; gives how it ended and all that it said.

        Raises TimeoutExpired where it takes longer than it is given.
        """
        for inner in psutil.Process(self.outer.pid).children() if self.is_running else ():
            os.kill(inner.pid, signal.SIGTERM)
        said, _ = self.outer.communicate(timeout=grace_s)
        return self.outer.returncode, said


def contain(image: Stage, name: str, mounts: Mapping[str, str], environment: Mapping[str, str]) -> Container:
    """A container of a new name; ``mounts`` are paths within, and what of the machine is seen there."""
    root, machine = copy_root(image.root, name), image.root.machine
    if image.packages:
        machine.bind(image.root.at(image.packages), root.at(image.packages), read_only=True)
    for path, source in mounts.items():
        _mount_point(root.seen(path), is_folder=machine.seen(source).is_dir())
    machine.run("mount", "--rbind", root.path, root.path)
    machine.run("mount", "-o", "remount,bind,ro", root.path)
    for path, source in mounts.items():
        machine.run("mount", "--bind", source, root.at(path))
    return Container(image, root, environment)


def _mount_point(path: Path, *, is_folder: bool) -> None:
    """Whoever runs containers makes it where the image lacks it."""
    if is_folder:
        path.mkdir(parents=True, exist_ok=True)
    else:
        path.touch()


def name_hosts(image: Stage, addresses: Mapping[str, str]) -> None:
    """Let these names alone lead anywhere in every container that is made from now on: its name server refuses."""
    image.root.seen("/etc/resolv.conf").write_text(f"nameserver {LOOPBACK}\n")
    lines = [f"{address} {name}\n" for name, address in {"localhost": LOOPBACK, **addresses}.items()]
    image.root.seen("/etc/hosts").write_text("".join(lines))


def pod_volume(image: Stage, pod_name: str, volume: Mapping[str, Any], group: int, secrets: Mapping[str, str]) -> str:
    """A volume of a pod, as the kubelet prepares it for the group of an fsGroup; gives its folder on the machine.

    One that is claimed is the same for all pods, and taken for one of a file system that knows that group.
    """
    claim = volume.get("persistentVolumeClaim")
    path = f"{FOLDER}/claim-{claim['claimName']}" if claim else f"{FOLDER}/volume-{pod_name}-{volume['name']}"
    folder = image.root.machine.seen(path)
    folder.mkdir(exist_ok=claim is not None)
    os.chown(folder, 0, group)
    folder.chmod(0o2777)
    match volume:
        case {"emptyDir": _} | {"persistentVolumeClaim": _}:
            pass
        case {"secret": {"items": items, "defaultMode": mode}}:
            for item in items:
                file = folder / item["path"]
                file.write_text(secrets[item["key"]])
                os.chown(file, 0, group)
                file.chmod(mode)
        case _:
            raise AssertionError(f"nobody knows here how to make the volume {volume}")
    return path


def words_of(image: Stage, container: Mapping[str, Any]) -> list[str]:
    """With what a container of a pod is started."""
    command = container.get("command", image.entrypoint)
    return [*command, *container.get("args", image.arguments)]


def mounts_of(container: Mapping[str, Any], volumes: Mapping[str, str]) -> dict[str, str]:
    """What a container of a pod mounts, for ``contain``."""
    return {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}


def copied_volume(image: Stage, name: str, path: str) -> str:
    """A new named volume of compose, which takes over what the image has at its place."""
    volume = f"{FOLDER}/volume-{name}"
    image.root.machine.run("cp", "-a", image.root.at(path), volume)
    return volume


def memory_volume(image: Stage, name: str, options: str) -> str:
    """A folder in memory, with mount options."""
    volume = f"{FOLDER}/volume-{name}"
    image.root.machine.seen(volume).mkdir()
    image.root.machine.run("mount", "-t", "tmpfs", "-o", options, "tmpfs", volume)
    return volume
