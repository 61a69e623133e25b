"""Pause, resume, retry and cancel of jobs on a real Ray: whoever goes on is another process, and no step is lost."""

from __future__ import annotations

import psutil
import pytest

from tests.cluster.gated import START_S, Gated, Submit
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def command(job: Gated, verb: str, state: str) -> None:
    """Say it, and wait until it has come to that."""
    with job.served.client() as client:
        client.command(job.id, verb)
    wait_for(f"the job to be {state}", lambda: job.job()["state"] == state, START_S)


def paused_at(job: Gated, gate: int) -> list[int]:
    """Pause it while its workers stand at a gate; their processes, of which none is left."""
    pids = job.wait_at(gate, 2)
    wait_for("the service to see it train", lambda: job.job()["state"] == "RUNNING")
    with job.served.client() as client:
        client.command(job.id, "pause")
    wait_for("the plan", lambda: "pause" in job.kinds())
    job.open(gate)
    wait_for("the pause", lambda: job.job()["state"] == "PAUSED", START_S)
    assert_released(job, pids)
    return pids


def assert_released(job: Gated, pids: list[int]) -> None:
    """No worker of it is left, on the page or on the machine."""
    wait_for("the end of its workers", lambda: not any(map(psutil.pid_exists, pids)))
    wait_for("the page to tell it", lambda: job.workers() == [])


def test_a_paused_job_holds_nothing_and_goes_on_in_other_processes_without_losing_a_step(submit: Submit) -> None:
    job = submit(config={"gates": [6, 12]})
    before = paused_at(job, 6)
    command(job, "resume", "RUNNING")
    after = job.wait_at(12, 2)
    assert not set(before) & set(after)
    job.open(12)
    done = job.wait_done()
    assert done["progress"]["samples"] == job.steps * 12
    assert done["attempt"] == 2
    job.assert_nothing_broken()
    assert {note.pid for note in job.notes() if note.step <= 6} == set(before)


def test_a_failed_job_that_is_tried_again_goes_on_in_other_processes_from_where_it_failed(submit: Submit) -> None:
    job = submit(config={"gates": [6, 12], "raises": [8]}, retry={"max_failures": 0})
    before = job.wait_at(6, 2)
    job.open(6)
    wait_for("the failure", lambda: job.job()["state"] == "FAILED", START_S)
    assert_released(job, before)
    command(job, "retry", "RUNNING")
    after = job.wait_at(12, 2)
    assert not set(before) & set(after)
    job.open(12)
    assert job.wait_done()["attempt"] == 2
    job.assert_nothing_broken()
    assert ("FAILED", "USER_ERROR") in job.events()


def test_a_paused_job_that_is_cancelled_starts_nothing_again(submit: Submit) -> None:
    job = submit(config={"gates": [6]})
    before = paused_at(job, 6)
    command(job, "cancel", "CANCELLED")
    assert_released(job, before)
    assert [to for to, _ in job.events()] == [
        "QUEUED",
        "STARTING",
        "RUNNING",
        "PAUSING",
        "PAUSED",
        "CANCELLED",
    ]
    job.assert_nothing_broken()
