"""Processes that a job's code has started end with the workers: of a killed one, of a cancelled job, of a done one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from service.supervise.processes import still_running
from tests.cluster.gated import Gated, sigkill
from tests.cluster.serving import Serving
from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

LEAST_STARTED = 4
"""A shell, its child, two processes that load data."""


@pytest.fixture
def job(served: Serving, tmp_path: Path) -> Iterator[Gated]:
    made = Gated(served, tmp_path, config={"gates": [6, 12, 18], "starts_processes": True})
    yield made
    made.end()


def started_by(pid: int) -> list[psutil.Process]:
    found = psutil.Process(pid).children(recursive=True)
    assert len(found) >= LEAST_STARTED
    return found


def assert_all_end(processes: list[psutil.Process]) -> None:
    assert still_running(processes, time.monotonic() + LIMIT_S) == []


def test_nothing_that_a_jobs_code_started_outlives_a_kill_or_the_end(job: Gated) -> None:
    victim, survivor = job.wait_at(6, 2)
    left, kept = started_by(victim), started_by(survivor)
    sigkill(victim)
    assert_all_end(left)
    job.open(6)
    assert job.wait_at(12, 1) == [survivor]
    assert still_running(kept, time.monotonic()) == kept
    newcomer = job.wait_newcomer([victim, survivor])
    job.open(12)
    job.wait_at(18, 2)
    kept += started_by(newcomer)
    job.open(18)
    job.wait_done()
    assert_all_end(kept)
    job.assert_nothing_broken()


def test_nothing_that_a_jobs_code_started_outlives_a_cancel(job: Gated) -> None:
    started = [process for pid in job.wait_at(6, 2) for process in started_by(pid)]
    with job.served.client() as client:
        client.command(job.id, "cancel")
    job.end()
    assert_all_end(started)
    job.assert_nothing_broken()
