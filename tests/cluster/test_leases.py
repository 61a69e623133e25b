"""A worker whom nobody calls any more saves, leaves, and is no loss: who comes back goes on from there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from service.folders import checkpoints_place
from tests.cluster.gated import actor_pids, sigkill
from tests.cluster.judging import assert_service_at_rest
from tests.cluster.serving import end_everything, serving
from tests.cluster.strays import nothing_left_behind
from tests.waiting import wait_for
from workers.checkpoints import list_checkpoints
from workers.storage_urls import open_storage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LEASE_S = 10
LIMIT_S = 90.0
SPEC = {
    "name": "lasting",
    "entrypoint": "workers.recipes.digits:build",
    "steps": 1_000_000,
    "workers": 1,
    "checkpoint": {"every_steps": 1_000_000},
    "eval_every_steps": 1_000_000,
}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "config.toml").write_text(f"lease_s = {LEASE_S}\nspares_per_node = 0\n")
    with nothing_left_behind():
        yield folder
        end_everything(folder)


def test_a_worker_that_nobody_calls_saves_and_leaves_and_the_job_goes_on_from_there(home: Path) -> None:
    with serving(home) as served, served.client() as client:
        job_id = client.submit(SPEC)["id"]
        wait_for("the hundredth step", lambda: client.job(job_id)["progress"]["step"] >= 100, LIMIT_S)
        [worker], controllers = actor_pids(served, "TrainWorker"), actor_pids(served, "JobController")
        served.kill()
        sigkill(*controllers)
        wait_for("the worker's end", lambda: not psutil.pid_exists(worker), LIMIT_S)
    [saved] = list_checkpoints(open_storage(checkpoints_place(str(home / "storage"), job_id)))
    assert saved.step >= 100
    with serving(home, num=2) as served, served.client() as client:
        wait_for("the job's return", lambda: client.job(job_id)["progress"]["step"] > saved.step, LIMIT_S)
        [restore] = [row for row in client.timeline(job_id) if row["kind"] == "restore"]
        assert restore["step"] == saved.step
        # Of what it measured alone nobody was told; the state it saved is whole.
        served.lost[job_id] += 1
        assert_service_at_rest(served)
        assert served.stop() == 0
        assert_service_at_rest(served)
