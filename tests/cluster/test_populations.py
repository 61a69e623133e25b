"""A population on a real Ray: rate and batch of live trials change, with another's state, in the same processes."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from tests.cluster.judging import assert_service_at_rest
from tests.cluster.serving import Serving
from tests.cluster.test_sweeps import has_ended
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

LIMIT_S = 240.0
SPEC: dict[str, Any] = {
    "name": "population",
    "job": {
        "entrypoint": "workers.recipes.digits:build",
        "samples": 100_000,
        "workers": {"min": 1, "max": 1},
        "resources": {"cpus": 0.5},
        "checkpoint": {"every_steps": 500},
    },
    "space": {"optimizer.lr": {"log_uniform": [1e-6, 1.0]}, "batch.global_size": {"choice": [32, 64, 128]}},
    "metric": "eval.accuracy",
    "mode": "max",
    "population": "pbt",
    "trials": 4,
    "parallel": 4,
}


def test_live_trials_change_rate_and_batch_with_their_processes_unchanged(served: Serving) -> None:
    pids: dict[str, set[int]] = defaultdict(set)
    with served.client() as client:
        sweep_id = client.submit_sweep(SPEC)["id"]

        def look() -> bool:
            for node in client.get("/cluster")["nodes"]:
                for worker in node["workers"]:
                    pids[worker["job_id"]].add(worker["pid"])
            return has_ended(client.get(f"/sweeps/{sweep_id}"))

        wait_for("the sweep", look, LIMIT_S)
        sweep = client.get(f"/sweeps/{sweep_id}")
        trials = client.get(f"/sweeps/{sweep_id}/trials")["trials"]
        told = {trial["job_id"]: client.get(f"/jobs/{trial['job_id']}/timeline")["timeline"] for trial in trials}
        points = {job: client.get(f"/jobs/{job}/metrics", keys="lr,global_batch")["points"] for job in told}
    assert (sweep["state"], sweep["trials"]["complete"]) == ("SUCCEEDED", 4)
    assert sweep["best"]["value"] > 0.9
    changed = {job: [row for row in rows if "donor" in row["after"]] for job, rows in told.items()}
    changed = {job: rows for job, rows in changed.items() if rows}
    assert changed
    for job, rows in told.items():
        assert len(pids[job] - {0}) == 1
        assert not [row for row in rows if row["kind"] in ("worker_lost", "failure")]
        assert all(row["steps_lost"] in (0, None) for row in rows)
    for job in changed:
        assert len({point["values"]["lr"] for point in points[job]}) > 1
    assert_service_at_rest(served)
