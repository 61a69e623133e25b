"""Jobs whose workers may have a GPU, or CPUs instead: on a Ray without GPUs, and on one that counts one."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from service.settings import environment
from service.supervise.ports import free_port
from tests.benchmarks.second_node import STARTED
from tests.cluster.foreign_ray import LOOPBACK, START_S, Foreign, end_ray, start_head
from tests.cluster.gated import Gated
from tests.cluster.serving import ROOT, whole_service
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NUM_CPUS = 3
SEAT_LIMIT_S = 180.0


@pytest.fixture(scope="module")
def foreign() -> Iterator[tuple[str, Foreign]]:
    """The address of a Ray and itself: its head has no GPU, whatever this machine has."""
    folder = Path(tempfile.mkdtemp(prefix="ct-mixed-"))
    address = f"127.0.0.1:{(port := free_port())}"
    place = ("--node-ip-address=127.0.0.1", f"--port={port}")
    try:
        start_head(folder, *place, f"--num-cpus={NUM_CPUS}", "--num-gpus=0", variables=LOOPBACK)
        yield address, Foreign(folder=folder)
    finally:
        end_ray(folder)


def test_without_gpus_workers_train_on_cpus_instead(foreign: tuple[str, Foreign], tmp_path: Path) -> None:
    address, ray = foreign
    resources = {"gpus": 1, "cpus_instead": 1.5}
    with whole_service(tmp_path / "home", "--ray-address", address, variables=LOOPBACK, foreign=ray) as served:
        job = Gated(served, tmp_path, workers=2, resources=resources, config={"gates": [4]})
        try:
            job.wait_at(4, 2)
            wait_for("their room to be taken", lambda: served.cluster()["resources"]["cpus"]["free"] == 0)
            job.open(4)
            job.wait_done()
            job.assert_nothing_broken()
        finally:
            job.end()


def test_of_three_workers_one_gets_the_gpu_and_the_others_the_room_that_there_is_on_cpus(
    foreign: tuple[str, Foreign], tmp_path: Path
) -> None:
    """The GPU is counted only: without one a worker that sits there finds out that torch sees none."""
    address, ray = foreign
    variables = {**environment(), **LOOPBACK, "RAY_TMPDIR": str(ray.folder), "OMP_NUM_THREADS": "1"}
    log = ray.folder.with_name(f"{ray.folder.name}-second.log")
    node = [sys.executable, "-m", "tests.benchmarks.second_node", address, "1"]
    with log.open("wb") as out:
        second = subprocess.Popen(
            node, env=variables, cwd=ROOT, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        wait_for("the node with a GPU", lambda: STARTED in log.read_text(), START_S, log.read_text)
        command = [sys.executable, "-m", "tests.cluster.seated", address, str(tmp_path)]
        done = subprocess.run(
            command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=SEAT_LIMIT_S, check=False
        )
    finally:
        second.kill()
        second.wait()
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["granted"], found["left"], sorted(found["raced"])) == (3, 0, [False, False, True])
    assert found["returned"]
    on_gpu, *on_cpus = sorted(found["workers"], key=lambda worker: worker["has_gpus"], reverse=True)
    assert [worker["has_gpus"] for worker in (on_gpu, *on_cpus)] == [True, False, False]
    assert [worker["phase"] for worker in on_cpus] == ["ready", "ready"]
    if not torch.accelerator.is_available():
        assert "resources.gpus=1 but torch" in on_gpu["failure"]
