"""Cancel in every state in which a job can be held, on a real Ray: nothing of it is left. Told by gates.

Of the other states, RUNNING and PAUSED are in ``test_pausing.py`` and wherever a test ends a job early.
"""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from service.client import RefusedError
from tests.cluster.gated import START_S, Gated, Submit, actor_pids, sigkill
from tests.cluster.judging import assert_service_at_rest
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]


def say(job: Gated, verb: str) -> str:
    """The state that it leads to at once."""
    with job.served.client() as client:
        return str(client.command(job.id, verb)["state"])


def assert_cancelled_from(job: Gated, *states: str) -> None:
    """It is cancelled, passed these states and no other, and left nothing; cancelling it again changes nothing."""
    wait_for("the end", lambda: job.job()["state"] == "CANCELLED", START_S)
    assert say(job, "cancel") == "CANCELLED"
    assert [to for to, _ in job.events()] == [*states, "CANCELLED"]
    assert job.events()[-1][1] == "CANCELLED_BY_USER"
    wait_for("the end of its workers", lambda: job.workers() == [] and actor_pids(job.served, "JobController") == [])
    assert_service_at_rest(job.served, notes=job.notes(), saves=job.saves())


def test_a_job_that_waits_for_room(submit: Submit) -> None:
    job = submit(resources={"cpus": 64})
    assert job.job()["state"] == "QUEUED"
    assert say(job, "cancel") == "CANCELLED"
    assert_cancelled_from(job, "QUEUED")
    assert job.job()["attempt"] == 0


def test_a_job_whose_worker_is_still_building(submit: Submit) -> None:
    job = submit(config={"waits_to_build": True}, workers=1)
    job.wait_at("build", 1)
    assert job.job()["state"] == "STARTING"
    assert say(job, "cancel") == "CANCELLING"
    assert_cancelled_from(job, "QUEUED", "STARTING", "CANCELLING")
    assert job.notes() == []


def test_a_job_that_has_lost_all_its_workers(submit: Submit) -> None:
    job = submit(config={"waits_to_build": True, "gates": [6]})
    job.open("build")
    first = job.wait_at(6, 2)
    wait_for("the service to see it train", lambda: job.job()["state"] == "RUNNING")
    job.shut("build")
    job.loses_all()
    sigkill(*first)
    wait_for("the loss", lambda: job.job()["state"] == "RECOVERING", START_S)
    assert say(job, "cancel") == "CANCELLING"
    assert_cancelled_from(job, "QUEUED", "STARTING", "RUNNING", "RECOVERING", "CANCELLING")
    assert {note.pid for note in job.notes()} <= set(first)


def test_a_job_that_is_about_to_pause(submit: Submit) -> None:
    job = submit(config={"gates": [6]})
    job.wait_at(6, 2)
    wait_for("the service to see it train", lambda: job.job()["state"] == "RUNNING")
    assert say(job, "pause") == "PAUSING"
    assert say(job, "cancel") == "CANCELLING"
    assert_cancelled_from(job, "QUEUED", "STARTING", "RUNNING", "PAUSING", "CANCELLING")
    assert max(note.step for note in job.notes()) == 5


def test_a_job_that_is_being_cancelled_takes_no_other_word(submit: Submit) -> None:
    """Its workers stand still, so that they cannot follow at once."""
    job = submit(config={"gates": [6]})
    pids = job.wait_at(6, 2)
    wait_for("the service to see it train", lambda: job.job()["state"] == "RUNNING")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert say(job, "cancel") == "CANCELLING"
        assert say(job, "cancel") == "CANCELLING"
        for verb in ("pause", "resume", "retry"):
            with pytest.raises(RefusedError):
                say(job, verb)
        assert_cancelled_from(job, "QUEUED", "STARTING", "RUNNING", "CANCELLING")
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
