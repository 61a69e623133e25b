"""A run of tests that is told to end, as by a limit of time, leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import LIMIT_S, wait_for

ROOT = Path(__file__).resolve().parents[1]
TEST = """
import threading
from pathlib import Path
import pytest

HERE = Path(__file__).parent

@pytest.fixture(scope="session")
def service():
    (HERE / "service").touch()
    yield
    (HERE / "service").unlink()

def test_waits(service):
    threading.Event().wait()
"""


def test_a_run_that_is_terminated_takes_down_what_its_tests_set_up(tmp_path: Path) -> None:
    (tmp_path / "test_waits.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        wait_for("the test", (tmp_path / "service").exists)
        process.send_signal(signal.SIGTERM)
        told, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert not (tmp_path / "service").exists(), told
    assert process.returncode == 2, told
