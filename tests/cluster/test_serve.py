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
from service.supervise.processes import Identity, belonging_to
from tests.cluster.gated import Gated
from tests.cluster.judging import assert_service_at_rest
from tests.cluster.serving import Serving, end_everything, serving
from tests.cluster.strays import nothing_left_behind
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
JOB_LIMIT_S = 90.0
SAVED_EVERY = 20


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


class Lasting(Gated):
    """A job that does not end by itself, and notes its steps; one service after the other has it."""

    def __init__(self, served: Serving, folder: Path) -> None:
        config, often = {"num_samples": 48, "pace_s": 0.02}, {"every_steps": SAVED_EVERY}
        super().__init__(served, folder, steps=1_000_000, config=config, workers=1, checkpoint=often)

    def wait_for_step(self, step: int) -> None:
        wait_for(f"step {step}", lambda: self.step >= step, JOB_LIMIT_S)

    @property
    def step(self) -> int:
        """As the service tells it."""
        return int(self.job()["progress"]["step"])

    def wait_restored(self) -> None:
        """Wait until the second attempt trains: on from the newest checkpoint of the first, and this is told."""
        # Its price may be none at all: no record of the attempt lies before it.
        wait_for("the job's return", lambda: any(row["cost_s"] is not None for row in self._restores()), JOB_LIMIT_S)
        first = min(note.step for note in self.notes() if note.attempt == 2)
        saved = max(save.saved for save in self.saves() if save.attempt == 1)
        # One more where its writer was killed before it could note that it was whole.
        assert first - 1 in (saved, saved + SAVED_EVERY)
        (restore,) = self._restores()
        assert restore["step"] == first - 1
        assert restore["reason"].startswith(f"training from the checkpoint of step {first - 1}")
        assert self.job()["attempt"] == 2

    def _restores(self) -> list[dict[str, Any]]:
        return [row for row in self.timeline() if row["kind"] == "restore"]


@pytest.mark.timeout(300)
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
        assert_service_at_rest(served)


@pytest.mark.timeout(400)
def test_each_part_that_is_stopped_is_replaced_and_the_job_goes_on_from_its_checkpoint(
    home: Path, tmp_path: Path
) -> None:
    with serving(home) as served:
        job = Lasting(served, tmp_path)
        wait_for("a checkpoint", job.saves, JOB_LIMIT_S)
        ray = served.ray()
        [gcs] = [process.pid for process in served.processes() if process.name() == "gcs_server"]
        hung = [served.pid_of("api"), served.pid_of("reconciler"), gcs]
        job.loses_all()
        for pid in hung:
            os.kill(pid, signal.SIGSTOP)
        for part, pid in zip(("api       ", "reconciler"), hung[:2], strict=True):
            served.wait_told(f"! {part} process {pid} gave no sign of life")
        served.wait_told(f"its port {ray.address.rpartition(':')[2]} said nothing")
        assert all(is_gone(pid) for pid in hung)
        wait_for("another Ray", lambda: Home(home).ray_file.exists() and served.ray().pid != ray.pid, 90)
        # The new reconciler, on the new Ray, told by the new API.
        job.wait_restored()
        assert served.stop() == 0
        job.assert_nothing_broken()


@pytest.mark.timeout(300)
def test_a_raylet_that_is_stopped_is_replaced_with_its_head_and_the_job_goes_on_from_its_checkpoint(
    home: Path, tmp_path: Path
) -> None:
    with serving(home) as served:
        job = Lasting(served, tmp_path)
        wait_for("a checkpoint", job.saves, JOB_LIMIT_S)
        ray = served.ray()
        [raylet] = [process.pid for process in served.processes() if process.name() == "raylet"]
        job.loses_all()
        os.kill(raylet, signal.SIGSTOP)
        served.wait_told(f"! Ray        lost: its raylet's port {ray.raylet_port} said nothing")
        wait_for("word on the page", lambda: not served.cluster()["is_up"])
        assert is_gone(raylet)
        job.wait_restored()
        assert served.ray().pid != ray.pid
        assert served.stop() == 0
        job.assert_nothing_broken()


@pytest.mark.timeout(400)
def test_jobs_outlive_a_serve_that_is_killed_and_one_that_is_stopped(home: Path, tmp_path: Path) -> None:
    with serving(home) as first:
        job = Lasting(first, tmp_path)
        job.wait_for_step(50)
        ray, children = first.ray(), (first.pid_of("api"), first.pid_of("reconciler"))
        first.kill()
        for pid in children:
            wait_for(f"the end of {pid}", lambda pid=pid: is_gone(pid))
        assert Identity(ray.pid, ray.started_at).is_alive()
    with serving(home, num=2) as second:
        assert "found running, taken over" in second.told
        assert second.ray() == ray
        job.served = second
        step = job.step
        job.wait_for_step(step + 50)
        assert (job.job()["state"], job.job()["attempt"]) == ("RUNNING", 1)
        mine = second.processes()
        assert second.stop() == 0
        assert all(is_gone(process.pid) for process in mine)
    with serving(home, num=3) as third:
        job.served = third
        job.wait_restored()
        job.assert_nothing_broken()
        assert third.stop() == 0
        job.assert_nothing_broken()


def test_purging_after_a_kill_ends_what_was_left_running(home: Path, tmp_path: Path) -> None:
    with serving(home) as served:
        Lasting(served, tmp_path)
        mine = served.processes()
        served.kill()
        end_everything(home)
        assert all(is_gone(process.pid) for process in mine)


def test_purging_after_a_kill_ends_a_ray_that_was_just_starting(home: Path) -> None:
    with serving(home, until=["Ray        starting"]) as served:
        served.kill()
    assert not Home(home).ray_file.exists()
    folder = Home(home).remembered_temp_dir()
    assert folder is not None
    wait_for("its raylet", lambda: any(process.name() == "raylet" for process in belonging_to(folder)))
    end_everything(home)
    assert belonging_to(folder) == []
