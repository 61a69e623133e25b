"""A run that forbids skips of some kind fails wherever one is skipped, and where there is no test of that kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAD = """
import pytest

@pytest.fixture
def absent():
    pytest.skip("the machine lacks something")

@pytest.mark.network
def test_runs():
    pass
"""
SKIPPED = """
@pytest.mark.network
def test_skips():
    pytest.skip("the machine lacks something")

@pytest.mark.network
def test_wants_what_skips(absent):
    pass
"""
OF_ANOTHER_KIND = """
@pytest.mark.gpu
def test_skips(absent):
    pass

@pytest.mark.network
@pytest.mark.xfail(reason="expected")
def test_fails():
    assert False
"""


def run(folder: Path, tests: str, *options: str) -> tuple[int, str]:
    """The exit status and the output of pytest over these tests."""
    (folder / "test_some.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", *options, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["alone", "in two processes"])
def test_forbidden_skips_and_a_kind_without_any_test_fail_the_run(tmp_path: Path, processes: tuple[str, ...]) -> None:
    status, told = run(tmp_path, HEAD + SKIPPED, "--forbid-skips", "network,postgres", *processes)
    assert status == pytest.ExitCode.TESTS_FAILED, told
    assert "1 passed, 2 skipped" in told
    faults = {line.rpartition("::")[2] for line in told.splitlines() if line.startswith("FORBIDDEN: ")}
    assert faults == {
        "FORBIDDEN: no test marked 'postgres' ran",
        "test_skips (network) was skipped",
        "test_wants_what_skips (network) was skipped",
    }


def test_skips_of_other_kinds_and_expected_failures_are_allowed(tmp_path: Path) -> None:
    status, told = run(tmp_path, HEAD + OF_ANOTHER_KIND, "--forbid-skips", "network")
    assert status == pytest.ExitCode.OK, told
    assert "FORBIDDEN" not in told
