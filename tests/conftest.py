"""What all tests share: which machines a test needs, and what counts as a test that did not run."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from tests.budgets import Budgets, markers_of, note_markers

# No test may fail by the clock of a busy machine.
settings.register_profile("concertina", deadline=None)
settings.load_profile("concertina")

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")


def _without_ray() -> str:
    return "" if find_spec("ray") else "Ray is not installed"


def _without_chromium() -> str:
    if not find_spec("playwright"):
        return "playwright is not installed"
    names = " or ".join(CHROMIUM_NAMES)
    return "" if any(shutil.which(name) for name in CHROMIUM_NAMES) else f"no {names} on this machine"


def _without_gpu() -> str:
    return "" if Path("/dev/nvidiactl").exists() else "no CUDA device on this machine"


def _without_namespaces() -> str:
    if os.geteuid() != 0 or not shutil.which("ip"):
        return "network namespaces need root and the command `ip`"
    tried = subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True, timeout=20)
    return "" if tried.returncode == 0 else "this machine permits no network namespaces"


def _without_mounts() -> str:
    if os.geteuid() != 0:
        return "mounting a file system needs root"
    tried = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    done = subprocess.run(tried, check=False, capture_output=True, timeout=20)
    return "" if done.returncode == 0 else "this machine permits no mounts"


LACKS: dict[str, Callable[[], str]] = {
    "cluster": _without_ray,
    "browser": _without_chromium,
    "gpu": _without_gpu,
    "mount": _without_mounts,
    "network": _without_namespaces,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--forbid-skips",
        default="",
        metavar="MARKERS",
        help="markers, with commas, whose tests must all run: one that is skipped, or none at all, fails the run",
    )
    parser.addoption(
        "--faults-on",
        default="sqlite",
        choices=("sqlite", "postgres"),
        help="the database under tests/faults, but for those that name theirs",
    )
    parser.addoption(
        "--train-on",
        default="cpu",
        choices=("cpu", "cuda"),
        help="where workers of groups under tests/training train, but for those that say: each on a part of a GPU",
    )


def pytest_configure(config: pytest.Config) -> None:
    markers = [name for name in str(config.getoption("--forbid-skips")).split(",") if name]
    if markers:
        config.pluginmanager.register(_AllMustRun(markers), "all-must-run")
    if threading.current_thread() is threading.main_thread():
        # Told to end, a run still takes its services, databases and folders down.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        # One that a shell put into the background would let no process that it starts be interrupted.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--train-on") == "cuda":
        from tests.training import group

        group.num_gpus = 0.05
    if not hasattr(config, "workerinput"):  # whose reports come to the process that started it
        config.pluginmanager.register(Budgets(), "budgets")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {marker: lack() for marker, lack in LACKS.items()}
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    note_markers(report, item)
    return report


def pytest_collection_finish() -> None:
    """Take what all tests import, a million objects, out of every garbage collection to come."""
    gc.freeze()


class _AllMustRun:
    """Fails a run in which a test of some kind was skipped, or in which there was none of that kind."""

    def __init__(self, markers: list[str]) -> None:
        self._markers = markers
        self._ran: set[str] = set()
        self._skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        kinds = [marker for marker in self._markers if marker in markers_of(report)]
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skipped += [f"{report.nodeid} ({kind})" for kind in kinds]
        elif report.when == "call":
            self._ran.update(kinds)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for fault in self._faults():
            terminalreporter.write_line(f"FORBIDDEN: {fault}", red=True)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._faults() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _faults(self) -> list[str]:
        absent = [f"no test marked {marker!r} ran" for marker in self._markers if marker not in self._ran]
        return absent + [f"{name} was skipped" for name in self._skipped]
