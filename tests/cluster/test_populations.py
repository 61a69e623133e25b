"""A population on a real Ray: rate and batch of live trials change, with another's state, in the same processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.cluster.judging import assert_service_at_rest
from tests.cluster.serving import Serving
from tests.cluster.test_sweeps import has_ended
from tests.waiting import wait_for
from tuning.turns import NUM_PARTS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

LIMIT_S = 240.0
LAST_CHANGE = 99_000
"""Samples: of a state that is later, or is told of later, no step may be left to show what was ordered with it."""
IN_TIME = 75_000
"""Samples: what was ordered by then has come into force. Later the trial may end before it hears of the order."""
METRICS = {"keys": "lr,global_batch", "max_points": 10_000}
SPEC: dict[str, Any] = {
    "name": "population",
    "job": {
        "entrypoint": "workers.recipes.digits:build",
        "samples": 100_000,
        "workers": {"min": 1, "max": 1},
        "resources": {"cpus": 0.5},
        "checkpoint": {"every_steps": 500},
        "batch": {"lr_rule": "none"},
        "lr_schedule": {"warmup_fraction": 0.0, "decay": "constant"},  # so that what steps tell is what was ordered
    },
    "space": {"optimizer.lr": {"log_uniform": [1e-6, 1.0]}, "batch.global_size": {"int": [32, 128]}},
    "metric": "eval.accuracy",
    "mode": "max",
    "population": "pbt",
    "trials": 4,
    "parallel": 4,
}


def settings_of(points: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """The rates and batches of a job's steps, but for the last one, which draws what is left."""
    return [(point["values"]["lr"], point["values"]["global_batch"]) for point in points[:-1]]


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
        begun = {job: client.get(f"/jobs/{job}")["spec"] for job in told}
        settings = {job: settings_of(client.get(f"/jobs/{job}/metrics", **METRICS)["points"]) for job in told}
    assert (sweep["state"], sweep["trials"]["complete"]) == ("SUCCEEDED", 4)
    assert sweep["best"]["value"] > 0.9
    changed = {job: [row for row in rows if "donor" in row["after"]] for job, rows in told.items()}
    changed = {job: rows for job, rows in changed.items() if rows}
    assert changed
    for job, rows in told.items():
        assert len(pids[job] - {0}) == 1
        assert not [row for row in rows if row["kind"] in ("worker_lost", "failure")]
        assert all(row["steps_lost"] in (0, None) for row in rows)
    for job, spec in begun.items():
        assert settings[job][0] == pytest.approx((spec["optimizer"]["lr"], spec["batch"]["global_size"]))
    for trial in trials:
        wanted, found, rows = trial["params"], settings[trial["job_id"]], changed.get(trial["job_id"], [])
        own = begun[trial["job_id"]]["batch"]["global_size"]  # which steps are told in
        ordered = max((max(row["after"]["samples"], own * row["step"]) for row in rows), default=0)
        if ordered > LAST_CHANGE:
            continue
        assert found[-1] == pytest.approx((wanted["optimizer.lr"], wanted["batch.global_size"]))
        has_changed = len({lr for lr, _ in found}) > 1
        is_untouched = found[0] == pytest.approx(found[-1])
        assert has_changed == bool(rows) or (len(rows) == 1 and ordered > IN_TIME and is_untouched), (rows, found[-12:])
    assert any(len({lr for lr, _ in settings[job]}) > 1 for job in changed)
    assert any(len({batch for _, batch in settings[job]}) > 1 for job in changed)
    assert_service_at_rest(served)


def test_where_half_of_them_find_a_place_trials_take_turns_and_lose_no_step(served: Serving) -> None:
    job = {**SPEC["job"], "resources": {"cpus": 1.5}}  # of three
    with served.client() as client:
        sweep_id = client.submit_sweep({**SPEC, "job": job, "population": "pb2"})["id"]
        wait_for("the sweep", lambda: has_ended(client.get(f"/sweeps/{sweep_id}")), LIMIT_S)
        sweep = client.get(f"/sweeps/{sweep_id}")
        trials = client.get(f"/sweeps/{sweep_id}/trials")["trials"]
        told = [row for trial in trials for row in client.get(f"/jobs/{trial['job_id']}/timeline")["timeline"]]
        moves = [move for trial in trials for move in client.get(f"/jobs/{trial['job_id']}/events")["events"]]
    assert (sweep["state"], sweep["trials"]["complete"]) == ("SUCCEEDED", 4)
    # A timeline tells of other restores too: of a donor's state that was gone, say, when it was to be read.
    assert [row for row in told if row["reason"].startswith("training from the checkpoint of step")]
    assert len([move for move in moves if move["to"] == "PAUSED"]) <= 4 * NUM_PARTS
    assert not [move for move in moves if move["to"] == "QUEUED" and move["from"] in ("RUNNING", "RECOVERING")]
    taken = [row for row in told if "donor" in row["after"]]
    assert {row["actor"] for row in taken} == {"pb2"}
    assert not [row for row in told if row["kind"] in ("worker_lost", "failure")]
    assert all(row["steps_lost"] in (0, None) for row in told)
    assert_service_at_rest(served)
