"""Workers that are killed in a forward pass, as the kernel kills where memory runs out, on a real Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.gated import ENDED, START_S, Gated
from tests.cluster.serving import Serving
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

TASK = """
import ctypes
import os
import signal

import torch
from torch import nn

from workers.task import TrainingTask


def build(config):
    is_first = False
    if config["spares"]:
        try:
            is_first = not os.close(os.open(config["spares"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass

    def loss(model, batch):
        if len(batch[0]) > config["most"] and not is_first:
            with open(config["killed"], "ab") as noted:
                noted.write(b".")
            if config["crashes"]:
                ctypes.string_at(0)
            os.kill(os.getpid(), signal.SIGKILL)
        return (model(batch[0]) - batch[1]).square().mean()

    data = torch.utils.data.TensorDataset(torch.ones(640, 2), torch.ones(640, 1))
    return TrainingTask(model=nn.Linear(2, 1), train_data=data, loss=loss)
"""


def killed_above(
    most: int, served: Serving, folder: Path, *, crashes: bool = False, spares_first: bool = False
) -> Gated:
    """A job that has ended, whose workers kill themselves in passes of more samples than that, or crash there.

    ``spares_first``: it has two, and whoever was built first never does.
    """
    (folder / "train.py").write_text(TASK)
    batch = {"global_size": 64, "micro_size": "auto"}
    noted = folder / "killed"
    first = str(folder / "first") if spares_first else ""
    config = {"most": most, "crashes": crashes, "killed": str(noted), "spares": first}
    job = Gated(served, folder, steps=60, code=folder, workers=1 + spares_first, batch=batch, config=config)
    wait_for("its end", lambda: job.job()["state"] in ENDED, 2 * START_S)
    if not spares_first:
        job.loses_all(len(noted.read_bytes()))
    return job


def bounds(job: Gated) -> list[dict[str, Any]]:
    """The rows of bounds on its passes, oldest first."""
    return [row for row in job.timeline() if "was killed in its first forward pass" in row["reason"]]


def test_a_job_whose_workers_are_killed_in_larger_passes_goes_on_with_smaller_ones(
    served: Serving, tmp_path: Path
) -> None:
    job = killed_above(16, served, tmp_path)
    assert job.job()["state"] == "SUCCEEDED"
    rows = bounds(job)
    assert {row["kind"] for row in rows} == {"batch"}
    assert rows[-1]["after"]["micro_size"] == 16
    assert " samples, as the kernel does where memory runs out (8 had passed on its node)" in rows[0]["reason"]


def test_who_is_killed_beside_one_that_comes_through_such_passes_goes_on_with_smaller_ones_as_well(
    served: Serving, tmp_path: Path
) -> None:
    job = killed_above(4, served, tmp_path, spares_first=True)
    assert job.job()["state"] == "SUCCEEDED"
    assert [row["after"]["micro_size"] for row in bounds(job)] == [4]
    assert "(3 died so beside others that had come through " in bounds(job)[0]["reason"]


def test_workers_that_are_killed_in_passes_of_one_sample_lack_memory(served: Serving, tmp_path: Path) -> None:
    job = killed_above(0, served, tmp_path)
    assert (job.job()["state"], job.job()["reason"]) == ("FAILED", "OUT_OF_MEMORY")
    with served.client() as client:
        told = client.get(f"/jobs/{job.id}/explain")
    assert "killed in one first forward pass after the other, the smallest of 1 sample, as the" in told["summary"]
    assert "more memory" in told["remedy"]


def test_a_crash_in_a_pass_is_no_lack_of_memory(served: Serving, tmp_path: Path) -> None:
    job = killed_above(0, served, tmp_path, crashes=True)
    assert (job.job()["state"], job.job()["reason"], bounds(job)) == ("FAILED", "USER_ERROR", [])
