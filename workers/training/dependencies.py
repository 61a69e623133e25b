"""A job's own dependencies: installed once a node, beside the service's packages and never over them.

The installer first resolves with every package of the service's environment pinned to its installed
version, so what is there satisfies what it can and a conflict is an error and not a replacement. Then
exactly what is missing is installed into a folder of its own, which comes last in ``sys.path``: the
service's packages, loaded late or early, cannot be shadowed by it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from workers.errors import DependencyError
from workers.node_lock import share_lock
from workers.scratch import DEPENDENCIES, LOCK, PART, enter

Report: TypeAlias = Callable[[str], None]

_NUM_TOLD_LINES = 20
_CACHE = "cache"
_NOISE = ("Requirement already satisfied", "Looking in ", "[notice]")
_OWN_FILE = re.compile(r" \(from -r \S+ \(line \d+\)\)")  # where the installer read it: a file of ours, long gone


def install_dependencies(requirements: Sequence[str], scratch: Path, report: Report, limit_s: float) -> Path | None:
    """Make the requirements importable by this process; the folder they are in, None where nothing was missing.

    The first worker of a node installs, others wait for it and use the same folder. ``report`` gets
    the installer's lines. Local files (``name @ file:///...``) need no network. The installer has ``limit_s`` seconds,
    and whoever waits for another worker's as many.

    Raises DependencyError with the installer's last lines, or naming what conflicts with the service.
    """
    installed = installed_versions()
    missing = [text for text in requirements if not _is_satisfied(Requirement(text), installed)]
    if not missing:
        return None
    folder = scratch / DEPENDENCIES / _folder_key(requirements, installed)

    def make(lock: int) -> None:
        with _cache_in_use(scratch, report, limit_s) as cache:
            pip = _Installer(folder.with_suffix(PART), (lock, cache), report, limit_s)
            _install(requirements, installed, folder, pip)

    try:
        enter(folder, make, "installing dependencies", limit_s, report)
    except TimeoutError as error:
        raise DependencyError(f"dependencies are not installed: {error}; look at that worker's log") from None
    names = sorted(p.name.removesuffix(".dist-info") for p in folder.glob("*.dist-info"))
    report(f"dependencies: using {', '.join(names) or 'the packages of the service'}")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()
    return folder


def installed_versions() -> dict[str, str]:
    """Normalised name -> version of every package that is installed in this environment.

    Only the folders that an installer looks at count: Ray puts others before them, with packages of
    its own in other versions.
    """
    folders = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions(path=folders):
        name, version = distribution.metadata["Name"], distribution.version
        with suppress(InvalidVersion, TypeError):  # a damaged entry, of which an installer can make nothing either
            versions.setdefault(canonicalize_name(name), str(Version(version)))
    return versions


def _is_satisfied(wanted: Requirement, installed: Mapping[str, str]) -> bool:
    """Whether the environment has it already; raises DependencyError where it has another version."""
    if wanted.marker is not None and not wanted.marker.evaluate():
        return True
    version = installed.get(canonicalize_name(wanted.name))
    if version is None:
        return False
    if wanted.url is not None or not wanted.specifier.contains(version, prereleases=True):
        raise DependencyError(
            f"the dependency {str(wanted)!r} conflicts with {wanted.name} {version}, which the service itself runs on; "
            f"relax the requirement so that {version} will do, or leave it out"
        )
    return not wanted.extras


def _folder_key(requirements: Sequence[str], installed: Mapping[str, str]) -> str:
    """Equal for equal requirements on equal environments; local files count by their content."""
    parts = {
        "requirements": sorted(requirements),
        "files": sorted(_file_digest(text) for text in requirements),
        "python": [sys.implementation.cache_tag, platform.machine(), platform.system()],
        "installed": sorted(installed.items()),
    }
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _file_digest(text: str) -> str:
    url = urlsplit(Requirement(text).url or "")
    path = Path(unquote(url.path))
    if url.scheme != "file" or not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Installer:
    """Runs pip in a working folder; its lines go to the log, and its last ones into the error."""

    def __init__(self, folder: Path, locks: tuple[int, ...], report: Report, limit_s: float) -> None:
        self.folder, self._locks, self._report = folder, locks, report
        self._limit_s, self._end_s = limit_s, time.monotonic() + limit_s

    def run(self, arguments: Sequence[str], what: str) -> None:
        """Raises DependencyError where pip fails or time is up for all that it was run for."""
        # -P: the bundle is the working directory of this process, and its modules are not for pip.
        command = [sys.executable, "-P", "-m", "pip", "--no-input", "--no-color", "--disable-pip-version-check"]
        pip = subprocess.Popen(
            [*command, "install", "--progress-bar", "off", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=self.folder,
            env=self._environment(),
            start_new_session=True,
            pass_fds=self._locks,  # should this process be killed, they stay held until pip has ended too
        )
        clock = threading.Timer(max(0.0, self._end_s - time.monotonic()), os.killpg, (pip.pid, signal.SIGKILL))
        clock.start()
        try:
            last_lines = self._relay(pip)
        finally:
            clock.cancel()
        if pip.returncode != 0:
            is_late = pip.returncode == -signal.SIGKILL
            late = f"took more than {self._limit_s:g} s (the setting install_s)"
            why = late if is_late else f"failed with exit code {pip.returncode}"
            told = "\n".join(last_lines)
            raise DependencyError(f"{what} {why}; correct `dependencies`. The installer's last lines:\n{told}")

    def _relay(self, pip: subprocess.Popen[str]) -> deque[str]:
        last_lines: deque[str] = deque(maxlen=_NUM_TOLD_LINES)
        with pip:
            assert pip.stdout is not None
            for line in pip.stdout:
                text = _OWN_FILE.sub("", line.rstrip())
                if text and not text.lstrip().startswith(_NOISE):
                    last_lines.append(text)
                    self._report(text)
        return last_lines

    def _environment(self) -> dict[str, str]:
        own = {
            "TMPDIR": str(self.folder),
            "PYTHONUNBUFFERED": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
            "PIP_BREAK_SYSTEM_PACKAGES": "1",  # nothing outside the folder is written, whoever owns the environment
        }
        cache = {"PIP_CACHE_DIR": str(self.folder.parent / _CACHE)}
        return {**cache, **os.environ, **own}


@contextmanager
def _cache_in_use(scratch: Path, report: Report, limit_s: float) -> Iterator[int]:
    """What installers have fetched stays while one of them runs; it has another size after."""
    lock = (scratch / DEPENDENCIES / _CACHE).with_suffix(LOCK)
    held = share_lock(lock, "tidying up", limit_s, report)
    try:
        yield held
    finally:
        os.truncate(held, 0)
        os.close(held)


def _install(requirements: Sequence[str], installed: Mapping[str, str], folder: Path, pip: _Installer) -> None:
    shutil.rmtree(pip.folder, ignore_errors=True)
    pip.folder.mkdir(mode=0o700, parents=True)
    try:
        found = _resolve(requirements, installed, pip)
        target = pip.folder / "packages"
        target.mkdir()
        if found:
            wanted = _write_lines(pip.folder / "wanted.txt", found)
            pip.run(["--no-deps", "--target", str(target), "--requirement", wanted], "installing dependencies")
        target.rename(folder)
    finally:
        shutil.rmtree(pip.folder, ignore_errors=True)


def _resolve(requirements: Sequence[str], installed: Mapping[str, str], pip: _Installer) -> list[str]:
    """What is to be installed, as exact requirements."""
    pinned = _write_lines(pip.folder / "installed.txt", [f"{name}=={version}" for name, version in installed.items()])
    wanted = _write_lines(pip.folder / "requirements.txt", requirements)
    answer = pip.folder / "report.json"
    pip.run(
        ["--dry-run", "--report", str(answer), "--constraint", pinned, "--requirement", wanted],
        "resolving dependencies against the service's own packages",
    )
    return [_exact(item) for item in json.loads(answer.read_text())["install"]]


def _exact(item: Mapping[str, Any]) -> str:
    """One entry of pip's report as a requirement; direct references keep their address."""
    name, version, origin = item["metadata"]["name"], item["metadata"]["version"], item["download_info"]
    if not item.get("is_direct"):
        return f"{name}=={version}"
    url = origin["url"]
    if (source := origin.get("vcs_info")) is not None:
        url = f"{source['vcs']}+{url}@{source['commit_id']}"
    if (inner := origin.get("subdirectory")) is not None:
        url = f"{url}#subdirectory={inner}"
    return f"{name} @ {url}"


def _write_lines(path: Path, lines: Sequence[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)
