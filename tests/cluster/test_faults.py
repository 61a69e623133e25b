"""Who is killed, or raises, costs no step: told gate by gate, and by the oracle at the end of each test."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.gated import Gated, actor_pids, sigkill
from tests.cluster.serving import Serving
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

Submit = Callable[..., Gated]


@pytest.fixture
def submit(served: Serving, tmp_path: Path) -> Iterator[Submit]:
    made: list[Gated] = []

    def make(**changes: Any) -> Gated:
        made.append(Gated(served, tmp_path, **changes))
        return made[-1]

    yield make
    for job in made:
        job.end()


def test_scaling_and_a_killed_worker_lose_no_sample(submit: Submit) -> None:
    job = submit(config={"gates": [4, 10, 16, 20, 22]})
    first = job.wait_at(4, 2)
    job.scale(1)
    wait_for("the plan", lambda: "resize" in job.kinds())
    job.open(4)
    job.wait_at(10, 1)
    job.scale(2)
    job.wait_newcomer(first)
    job.open(10)
    victim, survivor = job.wait_at(16, 2)
    sigkill(victim)
    job.open(16)
    wait_for("the loss in the timeline", lambda: "worker_lost" in job.kinds())
    assert job.wait_at(20, 1) == [survivor]
    job.wait_newcomer([victim, survivor, *first])
    job.open(20)
    assert survivor in job.wait_at(22, 2)
    job.open(22)
    done = job.wait_done()
    job.assert_nothing_broken()
    assert done["progress"]["samples"] == job.steps * 12
    kinds = job.kinds()
    assert kinds.count("resize") == 2
    assert kinds.count("worker_lost") == kinds.count("worker_joined") == 1
    assert "restore" not in kinds
    lost = next(row for row in job.timeline() if row["kind"] == "worker_lost")
    assert lost["steps_lost"] == 0
    assert lost["cost_s"] is not None


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_controller_is_replaced_and_no_step_is_lost_or_repeated(submit: Submit, how: signal.Signals) -> None:
    job = submit(config={"gates": [6, 12]})
    before = job.wait_at(6, 2)
    (controller,) = actor_pids(job.served, "JobController")
    os.kill(controller, how)
    job.open(6)
    after = job.wait_at(12, 2)
    assert sorted(before) == sorted(after), "the workers went on"
    wait_for("the adoption", lambda: "controller_lost" in job.kinds(), 60)
    wait_for("its end", lambda: not psutil.pid_exists(controller))
    job.open(12)
    job.wait_done()
    job.assert_nothing_broken()
    assert [to for to, _ in job.events()] == ["QUEUED", "STARTING", "RUNNING", "SUCCEEDED"]


def test_a_job_that_loses_all_workers_goes_on_from_its_last_whole_checkpoint(submit: Submit) -> None:
    job = submit(config={"gates": [13], "publishes": [10]})
    first = job.wait_at(13, 2)
    job.wait_at("publish-10", 1)
    job.wait_told(12)
    sigkill(*first)
    for path in job.folder.glob("at-13-*"):
        path.unlink()
    again = job.wait_at(13, 2)
    assert not set(first) & set(again)
    job.open("publish-10")
    job.open(13)
    job.wait_done()
    restore = next(row for row in job.timeline() if row["kind"] == "restore")
    assert restore["steps_lost"] == 7, "12 were done, 5 were saved"
    job.assert_nothing_broken(has_lost_all=True)
    job.assert_tidy()


def test_code_that_raises_is_tried_again_with_the_same_samples(submit: Submit) -> None:
    job = submit(config={"raises": [7]})
    job.wait_done()
    job.assert_nothing_broken()
    failure = next(row for row in job.timeline() if row["kind"] == "failure")
    assert "step 7 is cursed" in failure["reason"]
    assert "step 7 is cursed" in job.logs()


def test_a_killed_reconciler_changes_nothing_for_the_job(submit: Submit) -> None:
    job = submit(config={"gates": [6, 12, 18, 21]})
    before = job.wait_at(6, 2)
    pid = job.served.pid_of("reconciler")
    sigkill(pid)
    job.open(6)
    wait_for("another reconciler", lambda: job.served.pid_of("reconciler") != pid)
    assert sorted(job.wait_at(12, 2)) == sorted(before)
    # The controller outlived the driver that started it, and can still start workers.
    victim, survivor = before
    sigkill(victim)
    job.open(12)
    assert job.wait_at(18, 1) == [survivor]
    job.wait_newcomer(before)
    job.open(18)
    assert survivor in job.wait_at(21, 2)
    job.open(21)
    done = job.wait_done()
    job.assert_nothing_broken()
    assert done["attempt"] == 1
    assert "controller_lost" not in job.kinds()


def test_a_stopped_worker_is_lost_after_its_time_and_does_no_harm_when_it_wakes(submit: Submit) -> None:
    """It is stopped in the midst of a step and of a checkpoint; only the checkpoint may go on when it wakes."""
    job = submit(config={"gates": [6, 12], "publishes": [5]})
    victim, survivor = job.ranks_at(6, 2)
    assert job.wait_at("publish-5", 1) == [victim]
    os.kill(victim, signal.SIGSTOP)
    for gate in (6, "publish-5"):
        job.open(gate)
    wait_for("the loss in the timeline", lambda: "worker_lost" in job.kinds(), 60)
    with contextlib.suppress(ProcessLookupError):  # after some more seconds Ray ends it as it is
        os.kill(victim, signal.SIGCONT)
    wait_for("its end", lambda: not psutil.pid_exists(victim))
    assert job.wait_at(12, 1) == [survivor]
    job.open(12)
    job.wait_done()
    assert [note.step for note in job.notes() if note.pid == victim] == [1, 2, 3, 4, 5]
    assert f"process {survivor} passed" in job.logs()
    job.assert_nothing_broken()
    job.assert_tidy()


def test_a_lost_head_sends_the_job_back_to_the_queue_and_it_goes_on_from_its_checkpoint(submit: Submit) -> None:
    job = submit(config={"gates": [13]})
    first = job.wait_at(13, 2)
    job.wait_told(12)
    head = job.served.ray().pid
    sigkill(head)
    wait_for("the end of the workers", lambda: not any(psutil.pid_exists(pid) for pid in first))
    for path in job.folder.glob("at-13-*"):
        path.unlink()
    job.wait_at(13, 2)
    assert job.served.ray().pid != head
    job.open(13)
    assert job.wait_done()["attempt"] == 2
    states = ["QUEUED", "STARTING", "RUNNING", "RECOVERING", "QUEUED", "STARTING", "RUNNING", "SUCCEEDED"]
    assert [to for to, _ in job.events()] == states
    assert ("QUEUED", "CLUSTER_LOST") in job.events()
    job.assert_nothing_broken(has_lost_all=True)
