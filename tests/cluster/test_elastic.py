"""Elastic jobs give way to those who wait and grow again by themselves, on a real Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.packing import pack
from tests.cluster.gated import START_S, Gated
from tests.cluster.judging import assert_service_at_rest
from tests.cluster.passes import TELL
from tests.cluster.serving import Serving
from tests.cluster.verdicts import assert_verdict_fits
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

SLOW_TASK = """import torch
from torch import nn

from workers.task import TrainingTask


def build(config):
    def loss(model, batch):
        tell(config, len(batch[0]))
        time.sleep(0.02 * len(batch[0]))  # not where samples are read: they would be read ahead
        return (model(batch[0]) - batch[1]).square().mean()

    data = torch.utils.data.TensorDataset(torch.ones(1200, 2), torch.ones(1200, 1))
    return TrainingTask(model=nn.Linear(2, 1), train_data=data, loss=loss)
"""


def written(folder: Path) -> Path:
    """The task's code, beside what it tells."""
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text(TELL + SLOW_TASK)
    return code


def num_current(job: Gated) -> int:
    return int(job.job()["workers"]["current"])


def verdicts(job: Gated) -> list[dict[str, Any]]:
    """On its size; parts of the batch may be tried, too."""
    return [row for row in job.timeline() if (row["kind"], row["actor"]) == ("probation", "scaling")]


def test_an_elastic_job_gives_way_to_one_that_waits_and_grows_again_after_it(served: Serving, tmp_path: Path) -> None:
    code = written(tmp_path)
    first = Gated(served, tmp_path, steps=100_000, code=code)
    try:
        wait_for("two workers", lambda: num_current(first) == 2, START_S)
        second = Gated(served, tmp_path, steps=100_000, code=code, workers=2)
        try:
            wait_for("room for the second", lambda: num_current(second) == 2, START_S)
            assert num_current(first) == 1
        finally:
            second.end()
        wait_for("the first to grow again", lambda: num_current(first) == 2, START_S)
        wait_for("the verdict", lambda: verdicts(first), START_S)
    finally:
        first.end()
    (verdict,) = verdicts(first)
    resizes = [row for row in first.timeline() if row["kind"] == "resize"]
    told = [(row["actor"], row["before"]["workers"], row["after"]["workers"]) for row in resizes]
    assert told[:2] == [("service", 2, 1), ("scaling", 1, 2)]
    assert told[2:] in ([], [("scaling", 2, 1)] * (not verdict["after"]["is_kept"]))
    with served.client() as client:
        assert_verdict_fits(client, tmp_path, first.id, resizes[1], verdict, since=resizes[0]["step"] + 1)
    assert_service_at_rest(served)


def test_a_trial_grows_into_the_workers_that_no_other_trial_wants_any_more(served: Serving, tmp_path: Path) -> None:
    code = written(tmp_path)
    with served.client() as client:
        job = {
            "entrypoint": "train:build",
            "bundle": client.upload(pack(code).data)["id"],
            "config": {"folder": str(tmp_path)},
            "samples": 100_000,
            "batch": {"global_size": 12},
            "workers": {"min": 1, "max": 2},
        }
        search = {"optimizer.lr": {"uniform": [0.01, 0.02]}}
        spec = {"name": "grows", "job": job, "space": search, "metric": "loss", "mode": "min", "pruner": "none"}
        sweep_id = client.submit_sweep({**spec, "trials": 2, "parallel": 2})["id"]

        def sizes() -> dict[str, int]:
            jobs = client.jobs(label=f"sweep={sweep_id}")
            return {job["id"]: int(job["workers"]["current"]) for job in jobs if job["state"] == "RUNNING"}

        found: dict[str, int] = {}

        def are_on_all() -> bool:
            found.clear()
            found.update(sizes())
            return sorted(found.values()) == [1, 2]

        wait_for("trials on all three CPUs", are_on_all, START_S)
        small, large = sorted(found, key=found.__getitem__)
        client.command(large, "cancel")
        wait_for("the other to grow", lambda: sizes() == {small: 2}, START_S)
        grown = {"kind": "resize", "before": {"workers": 1}}

        def row() -> dict[str, object]:
            rows = [row for row in client.timeline(small) if row.items() >= grown.items()]
            return rows[0]["after"] if rows else {}

        wait_for("the row", row)
        after = row()
        client.command_sweep(sweep_id, "stop")
        wait_for("the end", lambda: not sizes(), START_S)
    assert after["workers"] == 2
    assert not after.keys() & {"lr", "global_batch"}
    assert_service_at_rest(served)
