"""Who is killed, or raises, costs no step: told gate by gate, and by the oracle at the end of each test."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil
import pytest

from service.settings import Settings
from tests.cluster.gated import FOUND_MARGIN_S, Submit, actor_pids, sigkill
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

LIVENESS_S = Settings.model_fields["liveness_s"].default


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
    """That of step 15 is not complete, and of 10 a byte has changed."""
    job = submit(config={"gates": [9, 14, 18], "publishes": [15]})
    for gate, step in ((9, 5), (14, 10)):
        job.wait_at(gate, 2)
        job.wait_saved(step)  # a writer that is behind takes the next one in its place
        job.open(gate)
    first = job.wait_at(18, 2)
    job.wait_at("publish-15", 1)
    job.wait_told(17)
    spoilt = job.damage_newest()
    job.loses_all()
    sigkill(*first)
    for path in job.folder.glob("at-18-*"):
        path.unlink()
    again = job.wait_at(18, 2)
    assert not set(first) & set(again)
    job.open("publish-15")
    job.open(18)
    job.wait_done()
    rows = [row for row in job.timeline() if row["kind"] == "restore"]
    [passed] = [row for row in rows if "passed_over" in row["after"]]
    assert passed["after"] == {"passed_over": spoilt.path}
    assert passed["reason"].startswith("the checkpoint of step 10 is passed over: ")
    assert "the checksum from byte" in passed["reason"]
    [restore] = [row for row in rows if row is not passed]
    assert "from the checkpoint of step 5" in restore["reason"]
    assert restore["steps_lost"] == 12, "17 were done, 5 of them were saved whole"
    job.assert_nothing_broken()
    job.assert_tidy()


def test_code_that_raises_is_tried_again_with_the_same_samples(submit: Submit) -> None:
    job = submit(config={"raises": [7]})
    job.wait_done()
    job.assert_nothing_broken()
    failure = next(row for row in job.timeline() if row["kind"] == "failure")
    assert "step 7 is cursed" in failure["reason"]
    assert "step 7 is cursed" in job.logs()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_reconciler_is_replaced_and_changes_nothing_for_the_job(submit: Submit, how: signal.Signals) -> None:
    job = submit(config={"gates": [6, 12, 18, 21]})
    before = job.wait_at(6, 2)
    pid = job.served.pid_of("reconciler")
    os.kill(pid, how)
    job.open(6)
    assert sorted(job.wait_at(12, 2)) == sorted(before)
    if how is signal.SIGSTOP:
        job.served.wait_told(f"! reconciler process {pid} gave no sign of life")
    wait_for("another reconciler", lambda: job.served.pid_of("reconciler") != pid)
    wait_for("the end of the lost one", lambda: not psutil.pid_exists(pid))
    job.wait_told(11)  # by the other one
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


def test_a_serve_that_stands_still_and_wakes_changes_nothing_for_the_job(submit: Submit) -> None:
    """Meanwhile its reconciler dies, which nobody starts again until then."""
    job = submit(config={"gates": [6, 12]})
    before = job.wait_at(6, 2)
    supervisor, reconciler = psutil.Process(job.served.process.pid), job.served.pid_of("reconciler")
    supervisor.suspend()
    try:
        wait_for("its standstill", lambda: supervisor.status() == psutil.STATUS_STOPPED)
        sigkill(reconciler)
        job.open(6)
        assert sorted(job.wait_at(12, 2)) == sorted(before), "the workers went on"
        assert job.served.pid_of("reconciler") == reconciler
    finally:
        supervisor.resume()
    wait_for("another reconciler", lambda: job.served.pid_of("reconciler") != reconciler)
    job.wait_told(11)  # by the other one
    job.open(12)
    assert job.wait_done()["attempt"] == 1
    job.assert_nothing_broken()
    assert "controller_lost" not in job.kinds()


def test_a_stopped_worker_is_lost_after_its_time_and_does_no_harm_when_it_wakes(submit: Submit) -> None:
    """It is stopped in the midst of a step and of a checkpoint; only the checkpoint may go on when it wakes."""
    job = submit(config={"gates": [6, 12], "publishes": [5]})
    victim, survivor = job.ranks_at(6, 2)
    assert job.wait_at("publish-5", 1) == [victim]
    os.kill(victim, signal.SIGSTOP)
    stopped_at = time.time()
    for gate in (6, "publish-5"):
        job.open(gate)
    wait_for("the loss in the timeline", lambda: "worker_lost" in job.kinds(), 60)
    print(f"found after {job.found_after_s(stopped_at):.2f} s")
    assert LIVENESS_S - 1 <= job.silent_s() <= LIVENESS_S + FOUND_MARGIN_S
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
    wait_for("something to go on from", job.saves)
    head = job.served.ray().pid
    job.loses_all()
    sigkill(head)
    wait_for("the end of the workers", lambda: not any(psutil.pid_exists(pid) for pid in first))
    saved = max(save.saved for save in job.saves())  # only now: they write while they train, and until they end
    assert saved in (5, 10)
    for path in job.folder.glob("at-13-*"):
        path.unlink()
    job.wait_at(13, 2)
    assert job.served.ray().pid != head
    job.open(13)
    assert job.wait_done()["attempt"] == 2
    states = ["QUEUED", "STARTING", "RUNNING", "RECOVERING", "QUEUED", "STARTING", "RUNNING", "SUCCEEDED"]
    assert [to for to, _ in job.events()] == states
    assert ("QUEUED", "CLUSTER_LOST") in job.events()
    (restore,) = [row for row in job.timeline() if row["kind"] == "restore"]
    assert restore["step"] == saved
    assert restore["reason"].startswith(f"training from the checkpoint of step {saved}")
    assert min(note.step for note in job.notes() if note.attempt == 2) == saved + 1
    job.assert_nothing_broken()
