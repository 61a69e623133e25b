"""The whole service on this machine: who dies comes back, who is killed leaves the jobs alone, nothing remains."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.supervise.home import Home
from service.supervise.processes import Identity
from tests.cluster.judging import assert_home_at_rest
from tests.cluster.serving import Serving, end_everything, serving
from tests.cluster.strays import nothing_left_behind
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
JOB_LIMIT_S = 60.0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    with nothing_left_behind():
        yield folder
        end_everything(folder)
    assert not folder.exists()


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def job_of(served: Serving, job_id: str) -> dict[str, Any]:
    with served.client() as client:
        return client.job(job_id)


def timeline_kinds(served: Serving, job_id: str) -> list[str]:
    with served.client() as client:
        return [row["kind"] for row in client.timeline(job_id)]


def submit(served: Serving, **changes: Any) -> str:
    spec = {
        "name": "lasting",
        "entrypoint": "workers.recipes.digits:build",
        "steps": 1_000_000,
        "workers": 1,
        "checkpoint": {"every_steps": 100_000},
        "eval_every_steps": 100_000,
        **changes,
    }
    with served.client() as client:
        return str(client.submit(spec)["id"])


def has_checkpoint(served: Serving, job_id: str) -> bool:
    with served.client() as client:
        return bool(client.get(f"/jobs/{job_id}/checkpoints")["checkpoints"])


def wait_for_step(served: Serving, job_id: str, step: int) -> None:
    wait_for(f"step {step}", lambda: job_of(served, job_id)["progress"]["step"] >= step, JOB_LIMIT_S)


def test_each_part_that_is_killed_comes_back_alone(home: Path) -> None:
    with serving(home) as served:
        ray = served.ray()
        for part in ("api", "reconciler"):
            before = served.pid_of(part)
            os.kill(before, signal.SIGKILL)
            wait_for(f"another {part}", lambda part=part, before=before: served.pid_of(part) != before)
        with served.client() as client:
            wait_for("the API", client.is_ready)
        assert served.ray() == ray
        os.kill(ray.pid, signal.SIGKILL)
        served.wait_told("! Ray        lost: its process ended")
        wait_for("another Ray", lambda: Home(home).ray_file.exists() and served.ray().pid != ray.pid, 90)
        assert served.stop_by_command() == 0
        assert "Traceback" not in served.told
        assert_home_at_rest(home)


@pytest.mark.timeout(400)
def test_each_part_that_is_stopped_is_replaced_and_the_job_starts_again(home: Path) -> None:
    with serving(home) as served:
        job_id = submit(served)
        wait_for_step(served, job_id, 50)
        ray = served.ray()
        [gcs] = [process.pid for process in served.processes() if process.name() == "gcs_server"]
        hung = [served.pid_of("api"), served.pid_of("reconciler"), gcs]
        for pid in hung:
            os.kill(pid, signal.SIGSTOP)
        for part, pid in zip(("api       ", "reconciler"), hung[:2], strict=True):
            served.wait_told(f"! {part} process {pid} gave no sign of life")
        served.wait_told(f"its port {ray.address.rpartition(':')[2]} said nothing")
        assert all(is_gone(pid) for pid in hung)
        wait_for("another Ray", lambda: Home(home).ray_file.exists() and served.ray().pid != ray.pid, 90)
        # The new reconciler, on the new Ray, told by the new API.
        wait_for("the job's return", lambda: job_of(served, job_id)["attempt"] == 2, JOB_LIMIT_S)
        assert served.stop() == 0
        assert_home_at_rest(home, has_lost_all=True)


@pytest.mark.timeout(300)
def test_a_raylet_that_is_stopped_is_replaced_with_its_head_and_the_job_starts_again(home: Path) -> None:
    with serving(home) as served:
        job_id = submit(served, checkpoint={"every_steps": 1000})
        wait_for("a checkpoint", lambda: has_checkpoint(served, job_id), JOB_LIMIT_S)
        ray = served.ray()
        [raylet] = [process.pid for process in served.processes() if process.name() == "raylet"]
        os.kill(raylet, signal.SIGSTOP)
        served.wait_told(f"! Ray        lost: its raylet's port {ray.raylet_port} said nothing")
        wait_for("word on the page", lambda: not served.cluster()["is_up"])
        assert is_gone(raylet)
        wait_for("the job's return", lambda: "restore" in timeline_kinds(served, job_id), JOB_LIMIT_S)
        assert job_of(served, job_id)["attempt"] == 2
        assert served.ray().pid != ray.pid
        assert served.stop() == 0
        assert_home_at_rest(home, has_lost_all=True)


def test_jobs_outlive_a_serve_that_is_killed_and_one_that_is_stopped(home: Path) -> None:
    with serving(home) as first:
        job_id = submit(first)
        wait_for_step(first, job_id, 50)
        ray, children = first.ray(), (first.pid_of("api"), first.pid_of("reconciler"))
        first.kill()
        for pid in children:
            wait_for(f"the end of {pid}", lambda pid=pid: is_gone(pid))
        assert Identity(ray.pid, ray.started_at).is_alive()
    with serving(home, num=2) as second:
        assert "found running, taken over" in second.told
        assert second.ray() == ray
        step = job_of(second, job_id)["progress"]["step"]
        wait_for_step(second, job_id, step + 200)
        job = job_of(second, job_id)
        assert (job["state"], job["attempt"]) == ("RUNNING", 1)
        mine = second.processes()
        assert second.stop() == 0
        assert all(is_gone(process.pid) for process in mine)
    with serving(home, num=3) as third:
        wait_for("the job's return", lambda: job_of(third, job_id)["state"] == "RUNNING", JOB_LIMIT_S)
        with third.client() as client:
            rows = client.timeline(job_id)
        assert [row["step"] for row in rows if row["kind"] == "restore"] >= [step + 200]
        wait_for_step(third, job_id, step + 250)
        assert_home_at_rest(home)
        assert third.stop() == 0
        assert_home_at_rest(home)


def test_purging_after_a_kill_ends_what_was_left_running(home: Path) -> None:
    with serving(home) as served:
        submit(served)
        mine = served.processes()
        served.kill()
        end_everything(home)
        assert all(is_gone(process.pid) for process in mine)
