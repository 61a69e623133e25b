"""A job whose bundle, checkpoints and output are in an object store, from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.numpy

from service.packing import pack
from tests.cluster.judging import assert_service_at_rest
from tests.cluster.serving import end_everything, serving
from tests.object_store import ObjectStore
from tests.waiting import wait_for
from workers.checkpoints import list_checkpoints
from workers.storage_urls import join, open_storage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

TRAIN = """
import os
from pathlib import Path
import torch
from torch import nn
from workers.task import TrainingTask

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        return torch.full((3,), float(index)), torch.tensor(float(index))

def build(config):
    Path(os.environ["CONCERTINA_OUTPUT"], "note.txt").write_text("written here")
    assert not any("SECRET" in name for name in os.environ)
    return TrainingTask(
        model=nn.Linear(3, 1),
        train_data=Data(),
        loss=lambda model, batch: nn.functional.mse_loss(model(batch[0])[:, 0], batch[1]),
    )
"""


def test_a_job_lives_in_an_object_store(tmp_path: Path) -> None:
    home, code = tmp_path / "home", tmp_path / "code"
    home.mkdir(mode=0o700)
    code.mkdir()
    (code / "train.py").write_text(TRAIN)
    with ObjectStore() as objects:
        url = objects.make_bucket() + "/team"
        table = "\n".join(f"{name} = {json.dumps(value)}" for name, value in objects.options.items())
        (home / "config.toml").write_text(f"storage = {json.dumps(url)}\n[storage_options]\n{table}\n")
        try:
            with serving(home) as served, served.client() as client:
                spec = {
                    "name": "far",
                    "entrypoint": "train:build",
                    "bundle": client.upload(pack(code).data)["id"],
                    "steps": 6,
                    "workers": 1,
                    "batch": {"global_size": 4},
                    "optimizer": {"lr": 0.01},
                    "checkpoint": {"every_steps": 2},
                }
                job_id = str(client.submit(spec)["id"])
                wait_for("its end", lambda: client.job(job_id)["state"] in ("SUCCEEDED", "FAILED"), 120)
                assert client.job(job_id)["state"] == "SUCCEEDED", client.get(f"/jobs/{job_id}/explain")
                assert client.download(f"/jobs/{job_id}/checkpoints/6", tmp_path / "w.safetensors")
                assert set(safetensors.numpy.load_file(tmp_path / "w.safetensors")) == {"weight", "bias"}
                assert client.download(f"/jobs/{job_id}/files/note.txt", tmp_path / "note.txt") == len("written here")
                kept = list_checkpoints(open_storage(join(url, "jobs", job_id, "checkpoints")))
                assert (kept[-1].step, kept[-1].is_final) == (6, True)
                assert_service_at_rest(served)
                assert served.stop() == 0
        finally:
            end_everything(home)
        assert open_storage(url).keys() == [], "nothing of an installation outlives it"
