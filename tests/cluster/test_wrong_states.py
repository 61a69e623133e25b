"""A worker whose memory lost a bit: what the job's owner reads of it, and how the job goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.gated import START_S, Gated
from tests.cluster.judging import assert_service_at_rest
from tests.cluster.serving import Serving
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

STEPS, SAVED, AT = 24, 5, 7
TASK = f"""
import time
from pathlib import Path

import torch
from torch import nn

from workers.task import TrainingTask


def build(config):
    model, num_calls = nn.Linear(4, 1), [0]

    def loss(model, batch):
        value = (model(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()
        num_calls[0] += 1
        if num_calls[0] == {AT}:
            folder = Path(config["folder"])
            try:
                (folder / "losing").touch(exist_ok=False)
            except FileExistsError:
                return value
            until_s = time.monotonic() + 60.0
            while not (folder / "lose").exists():
                assert time.monotonic() < until_s, "nobody said when to lose it"
                time.sleep(0.01)
            model.bias.data.view(torch.int32)[0] ^= 1
        return value

    data = torch.utils.data.TensorDataset(torch.randn(60, 4, generator=torch.Generator().manual_seed(0)))
    return TrainingTask(model=model, train_data=data, loss=loss)
"""


def ended(
    served: Serving, folder: Path, num_workers: int, num_lost: int = 0
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The job at its end, and its timeline; ``num_lost``: how often all its workers are replaced at once."""
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text(TASK)
    job = Gated(
        served, folder, steps=STEPS, code=code, workers=num_workers, checkpoint={"every_steps": SAVED}, name="lost-bit"
    )
    job.loses_all(num_lost)
    try:
        wait_for("the step in which it is lost", (folder / "losing").exists, START_S)
        job.wait_saved(SAVED)  # who holds another state ends without waiting for what is being written
        (folder / "lose").touch()
        job.wait_done()
    finally:
        job.end()
    assert_service_at_rest(served)
    return job.job(), job.timeline()


def test_the_worker_that_is_not_like_the_others_is_named_and_replaced(served: Serving, tmp_path: Path) -> None:
    job, timeline = ended(served, tmp_path, 3)
    [lost] = [row for row in timeline if row["kind"] == "worker_lost"]
    assert (
        "holds another state than most ranks after round 10, in 1 of 2 tensors, the first of them 'bias'"
        in (lost["reason"])
    )
    assert lost["steps_lost"] == 0
    assert job["progress"]["samples"] == STEPS * 12
    assert "restore" not in {row["kind"] for row in timeline}


def test_of_two_that_differ_both_are_replaced_and_go_on_from_the_last_checkpoint(
    served: Serving, tmp_path: Path
) -> None:
    job, timeline = ended(served, tmp_path, 2, num_lost=1)
    [restored] = [row for row in timeline if row["kind"] == "restore"]
    assert "training from the checkpoint of step 5 after all workers were lost" in restored["reason"]
    assert "rank 0 (worker 1.1), rank 1 (worker 1.2) hold different states after round 10" in restored["reason"]
    assert (job["progress"]["samples"], job["attempt"]) == (STEPS * 12, 1)
