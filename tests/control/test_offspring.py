"""What a worker's code has started does not outlive the worker, which nobody may have ended in order."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from service.supervise.processes import kill_all, still_running
from tests.waiting import LIMIT_S, wait_for

ROOT = Path(__file__).resolve().parents[2]

PARENT = """
import os, subprocess, sys, time
from multiprocessing import get_context
from workers.control import offspring

offspring.guard()
subprocess.Popen(["sh", "-c", "sleep 600 & wait"])
get_context("fork").Process(target=time.sleep, args=(600,)).start()
print("started", flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        found = [psutil.Process(process.pid), *offspring_of(process)]
        yield process
        kill_all(found)


def offspring_of(parent: subprocess.Popen[str]) -> list[psutil.Process]:
    """The shell with its child, the fork, and who guards them."""
    process = psutil.Process(parent.pid)
    wait_for("all that it starts", lambda: len(process.children(recursive=True)) == 4)
    return process.children(recursive=True)


def assert_all_end(processes: list[psutil.Process]) -> None:
    assert still_running(processes, time.monotonic() + LIMIT_S) == []


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "left-by-itself"])
def test_all_that_a_process_started_ends_with_it(parent: subprocess.Popen[str], is_killed: bool) -> None:
    offspring = offspring_of(parent)
    if is_killed:
        parent.kill()
    else:
        assert parent.stdin is not None
        parent.stdin.close()
    parent.wait(timeout=LIMIT_S)
    assert_all_end(offspring)
