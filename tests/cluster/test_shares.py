"""Shares by speed on a real Ray: a slow worker is found, relieved and told of while the job trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.packing import pack
from tests.cluster.judging import assert_service_at_rest
from tests.cluster.passes import TELL
from tests.cluster.serving import Serving
from tests.cluster.verdicts import assert_verdict_fits
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LIMIT_S = 120.0
BATCH = 64
UNEVEN_TASK = """import torch
from torch import nn

from workers.task import TrainingTask


def build(config):
    try:
        (Path(config["folder"]) / "slow").touch(exist_ok=False)
        sample_s = 0.016  # what a busy machine adds to a part is little beside it
    except FileExistsError:
        sample_s = 0.004

    def loss(model, batch):
        tell(config, len(batch[0]))
        time.sleep(sample_s * len(batch[0]))  # not where samples are read: they would be read ahead
        return (model(batch[0]) - batch[1]).square().mean()

    data = torch.utils.data.TensorDataset(torch.ones(4096, 2), torch.ones(4096, 1))
    return TrainingTask(model=nn.Linear(2, 1), train_data=data, loss=loss)
"""


def test_a_slow_worker_gets_less_of_the_batch_and_the_timeline_tells_what_that_brought(
    served: Serving, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(TELL + UNEVEN_TASK)
    with served.client() as client:
        job_id = client.submit(
            {
                "name": "uneven",
                "entrypoint": "train:build",
                "bundle": client.upload(pack(code).data)["id"],
                "config": {"folder": str(tmp_path)},
                "steps": 100_000,
                "workers": 2,
                "batch": {"global_size": BATCH, "micro_size": BATCH},
            }
        )["id"]

        def told(kind: str) -> list[dict[str, Any]]:
            return [row for row in client.timeline(job_id) if (row["kind"], row["actor"]) == (kind, "shares")]

        try:
            timeline = lambda: "\n".join(map(str, client.timeline(job_id)))  # noqa: E731
            wait_for("the verdict", lambda: bool(told("probation")), LIMIT_S, timeline)
        finally:
            client.command(job_id, "cancel")
            wait_for("the end", lambda: client.job(job_id)["state"] == "CANCELLED", LIMIT_S)
        change, verdict = told("batch")[0], told("probation")[0]
        assert_verdict_fits(client, tmp_path, job_id, change, verdict)
    assert change["before"] == {"parts": [BATCH // 2, BATCH // 2]}
    assert sum(change["after"]["parts"]) == BATCH
    assert min(change["after"]["parts"]) < BATCH / 3
    assert_service_at_rest(served)
