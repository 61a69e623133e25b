"""The image's steps, carried out in a fresh folder: what is copied suffices to install and to begin."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

from service.settings import load_settings
from service.supervise.supervisor import API_END_LIMIT_S, SAVE_LIMIT_S
from tests.deploy.dockerfile import Step, read_steps
from tests.deploy.manifests import DEPLOY, pod
from workers.storage_urls import local_folder

ROOT = DEPLOY.parent
STEPS = read_steps(DEPLOY / "Dockerfile")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
# Dependencies are those of the tests: fetching gigabytes anew would show nothing about these steps.
AS_HERE = {
    "PIP_NO_DEPS": "1",
    "PIP_NO_INDEX": "1",
    "PIP_NO_COMPILE": "1",
    "PIP_NO_BUILD_ISOLATION": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PYTHONPATH": sysconfig.get_path("purelib"),
}


class Image:
    """A folder that stands for the image's root; absolute paths of the steps lie below it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(root / "tmp"), **AS_HERE}
        self.workdir = root
        for name in ("tmp", "opt", "var/lib"):
            (root / name).mkdir(parents=True)

    def carry_out(self, step: Step) -> None:
        """One instruction. Making users is left out: it would make them on this machine."""
        match step.verb:
            case "WORKDIR":
                self.workdir = Path(self._inside(step.text))
                self.workdir.mkdir(parents=True, exist_ok=True)
            case "COPY" if not step.text.startswith("--from"):
                self._copy(*step.words)
            case "RUN" if step.words[1:3] == ["-m", "venv"]:
                self.run([*step.words, "--without-pip"])  # as dependencies are, the installer is that of the tests
            case "RUN" if step.words[0] not in ("useradd", "install"):
                self.run(step.words)
            case "ENV":
                self.environment |= dict(self._inside(word).split("=", 1) for word in step.words)

    def run(self, words: list[str]) -> str:
        """A command of the image; gives what it printed."""
        done = subprocess.run(
            [self._inside(word) for word in words],
            env=self.environment,
            cwd=self.workdir,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _copy(self, *words: str) -> None:
        *sources, target = words
        for source in sources:
            goal = self.workdir / target / source if target.endswith("/") else self.workdir / target
            goal.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, goal, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, goal)

    def _inside(self, word: str) -> str:
        return re.sub(r"(?<![\w/.-])/(?=opt/|src\b|var/lib/|tmp\b)", f"{self.root}/", word)


def last(verb: str) -> Step:
    return [step for step in STEPS if step.verb == verb][-1]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    made = Image(tmp_path_factory.mktemp("image") / "root")
    for step in STEPS:
        made.carry_out(step)
    return made


def test_the_image_begins_with_the_command_that_its_steps_installed(image: Image) -> None:
    told = image.run([*last("ENTRYPOINT").words, "version", "-o", "json"])
    assert "0.1.0" in told
    where = image.run(["python", "-c", "import service; print(service.__file__)"])
    assert where.startswith(str(image.root / "opt" / "concertina"))


def test_the_image_has_pages_migrations_and_all_modules_of_the_source(image: Image) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "service", "workers", "tuning"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    installed = Path(image.run(["python", "-c", "import service; print(service.__file__)"])).parents[1]
    assert [name for name in tracked if not (installed / name).is_file()] == []


def test_what_is_copied_is_let_through_to_the_builder() -> None:
    allowed = {
        line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")
    }
    copied = [s.words[:-1] for s in STEPS if s.verb == "COPY" and not s.text.startswith("--from")]
    assert {name for names in copied for name in names} == allowed


def test_the_image_runs_as_the_user_whom_kubernetes_names() -> None:
    made = next(step.words for step in STEPS if step.verb == "RUN" and step.words[0] == "useradd")
    uid = made[made.index("--uid") + 1]
    assert last("USER").text == f"{uid}:{uid}"
    for name in ("concertina", "ray-head", "ray-worker"):
        assert pod(name).spec["securityContext"]["runAsUser"] == int(uid)


def test_compose_knows_every_field() -> None:
    check = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec")
    told = subprocess.run([*check, DEPLOY / "compose.yaml"], check=False, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stdout


def test_the_composed_service_reads_its_settings_and_is_reached_from_this_machine_only() -> None:
    service = COMPOSE["services"]["concertina"]
    home = dict(word.split("=", 1) for word in last("ENV").words)["CONCERTINA_HOME"]
    password = "${DATABASE_PASSWORD:?give it letters and digits}"
    given = {name: str(value).replace(password, "0a1b") for name, value in service["environment"].items()}
    settings = load_settings(environ={"CONCERTINA_HOME": home, **given})
    assert settings.database_url == "postgresql+asyncpg://concertina:0a1b@database/concertina"
    assert service["ports"] == [f"127.0.0.1:{settings.port}:{settings.port}"]
    volume = service["volumes"][0].split(":")[1]
    assert Path(home).is_relative_to(volume)
    assert Path(str(local_folder(settings.storage_url))).is_relative_to(volume)


def test_the_composed_service_has_time_to_stop_and_cannot_become_root() -> None:
    service = COMPOSE["services"]["concertina"]
    assert int(service["stop_grace_period"].removesuffix("s")) > SAVE_LIMIT_S + API_END_LIMIT_S
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"]
