"""The image: the steps of deploy/Dockerfile, carried out one by one and word for word, each stage in a fresh root.

Dependencies are those of the tests, mounted where the steps make a virtual environment: fetching gigabytes anew would
show nothing about these steps. The installer finds them there and checks them against the project and the constraints,
without an index. The base image is this machine's Debian and this Python.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.apart import FOLDER, Apart, Root, debian_with_python
from tests.deploy.dockerfile import Step, read_steps
from tests.deploy.manifests import DEPLOY

SOURCE = DEPLOY.parent
STEPS = read_steps(DEPLOY / "Dockerfile")
IGNORED = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
STEP_S = 120.0
# Of Python's image.
PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
OFFLINE = {
    "PIP_NO_INDEX": "1",
    "PIP_NO_COMPILE": "1",
    "PIP_NO_BUILD_ISOLATION": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}


@dataclass
class Stage:
    """What a FROM begins, and what its steps have made of it so far; ``packages`` lie where they were mounted."""

    root: Root
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    folder: str = "/"
    user: str = ""
    entrypoint: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    packages: str = ""

    def command(
        self, words: Sequence[str], more: Mapping[str, str] | None = None, *, root: Root | None = None
    ) -> list[str]:
        """What carries out a command as a container of this image would; below another root where told."""
        environment = {"HOME": self._home(), **self.environment, **(more or {})}
        return (root or self.root).command(words, environment, folder=self.folder, user=self.user)

    def run(self, words: Sequence[str], more: Mapping[str, str] | None = None) -> str:
        """Carry one out; gives what it printed."""
        done = subprocess.run(self.command(words, more), capture_output=True, text=True, timeout=STEP_S)
        assert done.returncode == 0, f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def _home(self) -> str:
        number = self.user.partition(":")[0] or "0"
        lines = (line.split(":") for line in self.root.seen("/etc/passwd").read_text().splitlines())
        return next((words[5] for words in lines if words[2] == number), "/")


class Builder:
    """Carries out the steps; ``stages`` by their names, the image's own is ``""``."""

    def __init__(self, machine: Apart) -> None:
        self._machine = machine
        self.stages: dict[str, Stage] = {}

    def carry_out(self, step: Step) -> None:
        """One instruction."""
        if step.verb == "FROM":
            self.stages[step.stage] = Stage(debian_with_python(self._machine, f"stage-{len(self.stages)}"))
            return
        stage = self.stages[step.stage]
        match step.verb:
            case "WORKDIR":
                stage.folder = step.text
                stage.root.seen(step.text).mkdir(parents=True, exist_ok=True)
            case "COPY" if step.text.startswith("--from="):
                origin, source, target = step.words
                self._copy_from(self.stages[origin.removeprefix("--from=")], source, stage, target)
            case "COPY":
                _copy(stage, *step.words)
            case "RUN":
                stage.run(step.words if step.text.startswith("[") else ["/bin/sh", "-c", step.text], OFFLINE)
                self._lend_packages(stage)
            case "ENV":
                stage.environment |= dict(word.split("=", 1) for word in step.words)
            case "USER":
                stage.user = step.text
            case "ENTRYPOINT":
                stage.entrypoint = step.words
            case "CMD":
                stage.arguments = step.words
            case "EXPOSE" | "STOPSIGNAL":
                pass
            case _:
                raise AssertionError(f"nobody knows here how to carry out {step.verb} {step.text}")

    def _lend_packages(self, stage: Stage) -> None:
        """Mount what the tests have into a virtual environment that has just been made; what is written goes elsewhere.

        The project itself, which lies among it, is taken out; Ray's command, which the manifests call, comes along.
        """
        made = next((file.parent.name for file in stage.root.seen("/opt").glob("*/pyvenv.cfg")), None)
        if made is None or stage.packages:
            return
        purelib = Path(sysconfig.get_path("purelib"))
        stage.packages = f"/opt/{made}/{purelib.relative_to(sysconfig.get_path('data'))}"
        above = f"{FOLDER}/above-{made}"
        for name in ("written", "work"):
            self._machine.seen(f"{above}/{name}").mkdir(parents=True)
        layers = f"lowerdir={purelib},upperdir={above}/written,workdir={above}/work"
        self._machine.run("mount", "-t", "overlay", "-o", layers, "overlay", stage.root.at(stage.packages))
        packages = stage.root.seen(stage.packages)
        for path in list(packages.glob("*concertina-*")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        _, _, body = (Path(sysconfig.get_path("scripts")) / "ray").read_text().partition("\n")
        command = stage.root.seen(f"/opt/{made}/bin/ray")
        command.write_text(f"#!/opt/{made}/bin/python\n{body}")
        command.chmod(0o755)

    def _copy_from(self, origin: Stage, source: str, stage: Stage, target: str) -> None:
        """As a copy would, but the packages are mounted there too instead of being copied: they are gigabytes."""
        self._machine.run("cp", "-a", "--one-file-system", origin.root.at(source), stage.root.at(target))
        if Path(origin.packages).is_relative_to(source):
            stage.packages = f"{target}/{Path(origin.packages).relative_to(source)}"
            self._machine.bind(origin.root.at(origin.packages), stage.root.at(stage.packages), read_only=True)


def _copy(stage: Stage, *words: str) -> None:
    """What the builder is not told to ignore, from the source."""
    *sources, target = words
    folder = stage.root.seen(f"{stage.folder}/{target}")
    for source in sources:
        assert f"!{source}" in IGNORED, f"{source} is copied but kept from the builder"
        goal = folder / source if target.endswith("/") else folder
        goal.parent.mkdir(parents=True, exist_ok=True)
        if (SOURCE / source).is_dir():
            shutil.copytree(SOURCE / source, goal, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            shutil.copy(SOURCE / source, goal)


def build(machine: Apart) -> Stage:
    """The image."""
    builder = Builder(machine)
    for step in STEPS:
        builder.carry_out(step)
    return builder.stages[""]
