"""The global batch by goodput on a real Ray: it grows while the job trains, and what that brought is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.packing import pack
from tests.cluster.judging import assert_service_at_rest
from tests.cluster.passes import TELL, assert_applied
from tests.cluster.serving import Serving
from tests.cluster.verdicts import PAYS
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LIMIT_S = 200.0
"""What did not pay, as the machine was busy with something else, is tried again after 500 steps."""
BATCH = 16
NOISY_TASK = """import torch
from torch import nn

from workers.task import TrainingTask


# Samples hardly agree on a gradient, and a batch costs the same however many it has: where they are computed, as what
# takes long to read is read ahead.
def build(config):
    noise = torch.Generator().manual_seed(0)

    def loss(model, batch):
        tell(config, len(batch[0]))
        time.sleep(0.06)  # what a busy machine adds is little beside it, before and after
        return (model(batch[0]) - batch[1]).square().mean()

    return TrainingTask(
        model=nn.Linear(4, 1),
        train_data=torch.utils.data.TensorDataset(
            torch.randn(2048, 4, generator=noise), 10.0 * torch.randn(2048, 1, generator=noise)
        ),
        loss=loss,
        optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr),
    )
"""


def test_a_batch_grows_where_that_pays_with_its_rate_and_the_report_tells_what_it_brought(
    served: Serving, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(TELL + NOISY_TASK)
    with served.client() as client:
        job_id = client.submit(
            {
                "name": "noisy",
                "entrypoint": "train:build",
                "bundle": client.upload(pack(code).data)["id"],
                "config": {"folder": str(tmp_path)},
                "steps": 100_000,
                "workers": 2,
                "batch": {"global_size": BATCH, "micro_size": BATCH, "adapt": "goodput", "max_global_size": 2 * BATCH},
                "optimizer": {"lr": 0.01, "base_batch": BATCH},
                "lr_schedule": {"warmup_fraction": 0.0, "decay": "constant"},
            }
        )["id"]

        def told(kind: str) -> list[dict[str, Any]]:
            return [row for row in client.timeline(job_id) if (row["kind"], row["actor"]) == (kind, "goodput")]

        def found() -> list[int]:
            return [row["after"]["global_batch"] for row in told("probation") if row["after"]["is_kept"]]

        try:
            # At once or in two steps: by how sure the noise scale is when it is looked at first.
            wait_for("the largest batch, found to pay", lambda: 2 * BATCH in found(), LIMIT_S)
            explained = client.get(f"/jobs/{job_id}/explain")["details"]
            metrics = client.get(f"/jobs/{job_id}/metrics", keys="lr,global_batch,noise_scale")["points"]
        finally:
            client.command(job_id, "cancel")
            wait_for("the end", lambda: client.job(job_id)["state"] == "CANCELLED", LIMIT_S)
        changes, verdicts = told("batch"), told("probation")
        report = client.get(f"/jobs/{job_id}/report")["sections"]
    sizes = [BATCH, *(change["after"]["global_batch"] for change in changes)]
    assert [change["before"] for change in changes] == [{"global_batch": size} for size in sizes[:-1]]
    kept = [row["after"] for row in verdicts if row["after"]["is_kept"]]
    refused = [row for row in verdicts if not row["after"]["is_kept"]]
    grown = [verdict["global_batch"] for verdict in kept]
    assert grown == sorted(set(grown))
    assert grown[-1] == sizes[-1] == 2 * BATCH
    assert all(row["after"]["samples_per_s"] < PAYS * row["before"]["samples_per_s"] for row in refused), refused
    for verdict in verdicts:
        assert_applied(tmp_path, [row for row in changes if row["seq"] < verdict["seq"]][-1], verdict)
    assert len(changes) == len(kept) + 2 * len(refused), "what is not kept is taken back"
    assert [change["steps_lost"] for change in changes] == [0] * len(changes)
    # At least, by the least noise scale.
    assert min(verdict["gain"] for verdict in kept) > 1.0
    assert any(f"A step has {2 * BATCH} samples, where {BATCH} were asked for" in line for line in explained)
    rates = {point["values"]["global_batch"]: point["values"]["lr"] for point in metrics}
    assert rates[2 * BATCH] == pytest.approx(rates[BATCH] * 2**0.5)
    assert any("noise_scale" in point["values"] for point in metrics)
    sections = [s for s in report if s["actor"] == "goodput"]
    assert len(sections) == len(changes)
    assert sections[-1]["gain"] > 1.0
    assert_service_at_rest(served)
