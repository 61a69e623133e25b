"""The user's own code on a real cluster: its names, its dependencies, its environment, its files."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from service.packing import pack
from tests.cluster.judging import assert_service_at_rest
from tests.cluster.serving import Serving
from tests.training.wheels import write_wheel
from tests.waiting import wait_for
from workers.scratch import Bounds, sweep

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

TRAIN = """
import os
from pathlib import Path
import torch
from torch import nn
import service
from tuning.knobs import WIDTH
import tinydep
from tinydep import SCALE
from workers.node_lock import try_lock
from workers.task import TrainingTask

def is_kept(folder):
    return try_lock(folder.with_suffix(".lock")) is None

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        return torch.full((WIDTH,), float(index)), torch.tensor(float(index) * SCALE)

def build(config):
    Path(os.environ["CONCERTINA_OUTPUT"], "note.txt").write_text(f"{service.NAME} {os.environ['FLAVOUR']}")
    print("my own service is", service.NAME)
    print("kept in use:", is_kept(Path.cwd()), is_kept(Path(tinydep.__file__).parent))
    return TrainingTask(
        model=nn.Linear(WIDTH, 1),
        train_data=Data(),
        loss=lambda model, batch: nn.functional.mse_loss(model(batch[0])[:, 0], batch[1]),
    )
"""


def test_a_bundle_with_names_of_ours_and_a_local_wheel_trains(served: Serving, tmp_path: Path) -> None:
    code, wheels = tmp_path / "code", tmp_path / "wheels"
    (code / "tuning").mkdir(parents=True)
    wheels.mkdir()
    (code / "train.py").write_text(TRAIN)
    (code / "service.py").write_text('NAME = "not concertina"\n')
    (code / "tuning" / "__init__.py").write_text("")
    (code / "tuning" / "knobs.py").write_text("WIDTH = 3\n")
    requirement = write_wheel(wheels, "tinydep", source="SCALE = 2.0\n")
    with served.client() as client:
        spec = {
            "name": "own-names",
            "entrypoint": "train:build",
            "bundle": client.upload(pack(code).data)["id"],
            "dependencies": [requirement],
            "env": {"FLAVOUR": "vanilla"},
            "steps": 5,
            "batch": {"global_size": 4},
        }
        job_id = client.submit(spec)["id"]
        ended = ("SUCCEEDED", "FAILED")
        wait_for("the job's end", lambda: client.job(job_id)["state"] in ended, 150)
        job = client.job(job_id)
        assert job["state"] == "SUCCEEDED", (job, client.logs(job_id).text)
        assert "my own service is not concertina" in client.logs(job_id).text
        assert "kept in use: True True" in client.logs(job_id).text
        wait_for("the end of its worker's use", lambda: is_swept(Path(served.ray().temp_dir) / "scratch"))
        target = tmp_path / "note.txt"
        client.download(f"/jobs/{job_id}/files/note.txt", target)
        assert target.read_text() == "not concertina vanilla"
    assert_service_at_rest(served)


def is_swept(scratch: Path) -> bool:
    """Whether no code and no packages are left on the node, after removing what nobody uses."""
    sweep(scratch, Bounds(max_bytes=0), time.time(), every_s=0.0)
    return not [path for kind in ("bundles", "deps") for path in (scratch / kind).iterdir() if path.is_dir()]


def test_code_that_fails_at_start_up_is_told_and_not_tried_again(served: Serving, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def build(config):\n    raise ValueError('no such corpus')\n")
    with served.client() as client:
        bundle = client.upload(pack(tmp_path).data)["id"]
        job_id = client.submit({"name": "bad", "entrypoint": "train:build", "bundle": bundle, "steps": 5})["id"]
        wait_for("the failure", lambda: client.job(job_id)["state"] == "FAILED", 90)
        job = client.job(job_id)
        assert (job["reason"], job["attempt"]) == ("USER_ERROR", 1)
        explained = client.get(f"/jobs/{job_id}/explain")
        assert "no such corpus" in explained["summary"] + " ".join(explained["details"])
        assert "no such corpus" in client.logs(job_id).text
    assert_service_at_rest(served)
