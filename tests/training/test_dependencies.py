"""Dependencies: only what is missing is installed, once a node, and never over the service's packages.

The installer runs for real, without a network: its index is switched off.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy
import pytest

from tests.training.wheels import write_wheel
from workers.errors import DependencyError
from workers.node_lock import node_lock
from workers.training.dependencies import install_dependencies, installed_versions


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if name.startswith("wheel_"):
            del sys.modules[name]


def install(requirements: list[str], scratch: Path) -> tuple[Path | None, list[str]]:
    lines: list[str] = []
    return install_dependencies(requirements, scratch, lines.append, 600.0), lines


def refused(requirements: list[str], scratch: Path) -> str:
    with pytest.raises(DependencyError) as caught:
        install(requirements, scratch)
    return caught.value.message


def test_a_local_wheel_is_installed_once_and_again_only_when_it_has_changed(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "wheel_once", "2.5", "ANSWER = 42\n", requires=["numpy"])
    folder, lines = install([wheel], tmp_path / "scratch")
    assert folder is not None
    assert importlib.import_module("wheel_once").ANSWER == 42
    assert lines[-1] == "dependencies: using wheel_once-2.5"
    assert any("wheel_once" in line for line in lines[:-1])
    assert not (folder / "numpy").exists()
    assert sys.path[-1] == str(folder), "nothing in it can hide a package of the service"

    before = folder.stat()
    again, lines = install([wheel], tmp_path / "scratch")
    assert (again, lines) == (folder, ["dependencies: using wheel_once-2.5"])
    assert folder.stat() == before
    assert {p.suffix for p in folder.parent.iterdir()} <= {"", ".lock"}

    assert write_wheel(tmp_path, "wheel_once", "2.5", "ANSWER = 43\n", requires=["numpy"]) == wheel
    other, _ = install([wheel], tmp_path / "scratch")
    assert other is not None
    found = [(f / "wheel_once.py").read_text() for f in (folder, other)]
    assert found == ["ANSWER = 42\n", "ANSWER = 43\n"], "another wheel at the same address is another dependency"


def test_an_installer_that_takes_too_long_is_ended_and_the_bound_is_named(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "wheel_late", "1.0", "")
    with pytest.raises(DependencyError, match=r"took more than 0.01 s \(the setting install_s\)"):
        install_dependencies([wheel], tmp_path / "scratch", print, 0.01)
    assert not list((tmp_path / "scratch" / "deps").glob("*.part"))


def test_what_the_service_has_is_not_installed_again(tmp_path: Path) -> None:
    wanted = ["numpy>=1.20", "Torch", "scikit_learn", "nothing-such; python_version < '3'"]
    assert install(wanted, tmp_path) == (None, [])
    assert list(tmp_path.iterdir()) == []


def test_a_conflict_with_the_service_names_both_versions(tmp_path: Path) -> None:
    message = refused(["einops", "torch>=99"], tmp_path)
    assert message.startswith(f"the dependency 'torch>=99' conflicts with torch {version('torch')}")
    assert "relax the requirement" in message
    assert list(tmp_path.iterdir()) == []


def test_a_conflict_further_down_is_an_error_with_the_installers_words(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "wheel_old", requires=["numpy<1.0"])
    message = refused([wheel], tmp_path / "scratch")
    assert "resolving dependencies against the service's own packages failed with exit code 1" in message
    assert "numpy<1.0" in message
    assert f"numpy=={numpy.__version__}" in message


def test_what_cannot_be_found_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    message = refused(["no-such-package-anywhere>=3"], tmp_path)
    assert "The installer's last lines:" in message
    assert "No matching distribution found for no-such-package-anywhere>=3" in message
    assert len(message.splitlines()) <= 21
    assert {p.suffix for p in (tmp_path / "deps").iterdir() if p.name != "cache"} == {".lock"}


def test_modules_in_the_working_directory_do_not_meet_the_installer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for name in ("json.py", "pip.py", "logging.py"):
        (bundle / name).write_text("raise SystemExit('the user has a module of that name')\n")
    wheel = write_wheel(tmp_path, "wheel_apart")
    monkeypatch.chdir(bundle)
    assert install([wheel], tmp_path / "scratch")[0] is not None


TWO_AT_ONCE = """
import sys
from pathlib import Path
from workers.training.dependencies import install_dependencies
sys.stdin.readline()
lines = []
print(install_dependencies([sys.argv[1]], Path(sys.argv[2]), lines.append, 600.0))
import wheel_shared
print(any("Processing" in line for line in lines))
"""


def test_of_two_workers_at_once_one_installs_and_the_other_waits(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "wheel_shared")
    command = [sys.executable, "-c", TWO_AT_ONCE, wheel, str(tmp_path / "scratch")]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        for _ in range(2)
    ]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    answers = [worker.communicate(timeout=60)[0].splitlines() for worker in workers]
    assert answers[0][0] == answers[1][0]
    assert sorted(answer[1] for answer in answers) == ["False", "True"]


def test_a_lock_that_is_held_too_long_is_an_error_that_says_what_for(tmp_path: Path) -> None:
    lines: list[str] = []
    with (
        node_lock(tmp_path / "x.lock", "installing", 1, lines.append),
        pytest.raises(TimeoutError, match=r"waited 0.2 s for another worker of this node: installing"),
        node_lock(tmp_path / "x.lock", "installing", 0.2, lines.append),
    ):
        pass
    assert lines == ["waiting for another worker of this node: installing"]


def test_a_lock_is_free_after_its_holder(tmp_path: Path) -> None:
    order: list[str] = []
    inside = threading.Event()

    def wait_for_it() -> None:
        with node_lock(tmp_path / "x.lock", "a turn", 30, lambda _: inside.set()):
            order.append("second")

    with node_lock(tmp_path / "x.lock", "a turn", 30, order.append):
        thread = threading.Thread(target=wait_for_it)
        thread.start()
        assert inside.wait(30)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]


HOLDER = """
import signal, subprocess, sys
from pathlib import Path
from workers.node_lock import node_lock
with node_lock(Path(sys.argv[1]), "a turn", 5, print) as lock:
    print(subprocess.Popen(["cat"], stdout=subprocess.DEVNULL, pass_fds=(lock,)).pid, flush=True)
    signal.pause()
"""


def test_the_lock_of_a_killed_worker_is_held_until_its_installer_ends(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        installer = int(holder.stdout.readline())
        holder.kill()
        holder.wait(30)
        with pytest.raises(TimeoutError), node_lock(path, "a turn", 0.2, lambda _: None):
            pass
        os.kill(installer, 0)
    with node_lock(path, "a turn", 30, lambda _: None):
        assert holder.stdin.closed, "leaving the block closed what the installer reads, and so ended it"


def test_versions_are_those_that_the_installer_sees() -> None:
    versions = installed_versions()
    assert versions["torch"] == version("torch")
    assert versions["scikit-learn"]
