"""Sweeps on a real Ray: the best region is found, processes serve one trial after another, kills lose nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.gated import actor_pids, sigkill
from tests.cluster.judging import assert_service_at_rest
from tests.cluster.serving import Serving
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

LIMIT_S = 240.0


def start(served: Serving, **changes: Any) -> str:
    spec = {
        "name": "digits-lr",
        "job": {"entrypoint": "workers.recipes.digits:build", "epochs": 4, "batch": {"global_size": 64}},
        "space": {"optimizer.lr": {"log_uniform": [1e-6, 1.0]}},
        "metric": "eval.accuracy",
        "mode": "max",
        "pruner": {"asha": {"min_samples": 1024, "reduction": 2}},
        "trials": 10,
        "parallel": 2,
        **changes,
    }
    with served.client() as client:
        return str(client.submit_sweep(spec)["id"])


def until(served: Serving, sweep_id: str, holds: Callable[[dict[str, Any]], bool], pids: set[int]) -> dict[str, Any]:
    """The sweep once it is so; ``pids`` takes the processes of workers that are seen meanwhile."""
    found: dict[str, Any] = {}

    def look() -> bool:
        pids.update(actor_pids(served, "TrainWorker"))
        with served.client() as client:
            found.update(client.get(f"/sweeps/{sweep_id}"))
        return holds(found)

    wait_for("the sweep", look, LIMIT_S)
    return found


def training(served: Serving) -> list[tuple[str, int]]:
    """Jobs and processes of workers that train, once there are any."""
    found: list[tuple[str, int]] = []

    def look() -> bool:
        with served.client() as client:
            nodes = client.get("/cluster")["nodes"]
        workers = [worker for node in nodes for worker in node["workers"]]
        found[:] = [(worker["job_id"], worker["pid"]) for worker in workers if worker["pid"]]
        return bool(found)

    wait_for("a worker that trains", look)
    return found


def sigkill_in_training(served: Serving) -> None:
    """Kill a worker that trains, and tell the oracle. What its process is at may be another job than the page told."""
    _, pid = training(served)[0]
    os.kill(pid, signal.SIGSTOP)
    # Its output goes to .../<job>/<attempt>/<worker id>.log
    job_id = Path(os.readlink(f"/proc/{pid}/fd/1")).parts[-3]
    served.lost[job_id] += 1
    sigkill(pid)


def num_ended(sweep: dict[str, Any]) -> int:
    counts = sweep["trials"]
    return int(counts["complete"] + counts["pruned"] + counts["failed"])


def has_ended(sweep: dict[str, Any]) -> bool:
    return sweep["state"] not in ("RUNNING", "PAUSED") and num_ended(sweep) == sweep["trials"]["total"]


def assert_each_trial_was_one_job(served: Serving, sweep_id: str, num_trials: int) -> None:
    with served.client() as client:
        trials = client.get(f"/sweeps/{sweep_id}/trials", page_size=100)["trials"]
        jobs = list(client.jobs(label=f"sweep={sweep_id}"))
    assert [trial["number"] for trial in trials] == list(range(num_trials))
    assert sorted(trial["job_id"] for trial in trials) == sorted(job["id"] for job in jobs)


def test_a_sweep_finds_the_region_and_its_processes_go_from_trial_to_trial(served: Serving) -> None:
    pids: set[int] = set()
    sweep_id = start(served)
    sweep = until(served, sweep_id, has_ended, pids)
    assert (sweep["state"], sweep["trials"]["total"], sweep["trials"]["failed"]) == ("SUCCEEDED", 10, 0)
    assert sweep["best"]["value"] > 0.9
    assert 1e-4 < sweep["best"]["params"]["optimizer.lr"] < 0.3
    assert_each_trial_was_one_job(served, sweep_id, 10)
    with served.client() as client:
        trials = client.get(f"/sweeps/{sweep_id}/trials", page_size=100)["trials"]
    # However short a trial is, it does not outrun the verdict of its rung.
    assert {trial["samples"] for trial in trials if trial["state"] == "PRUNED"} <= {1024, 2048, 4096}
    # Each spare that is taken is replaced by one; a new process a trial would make twelve and more.
    assert len(pids) <= 7
    wait_for("the end of its controller", lambda: not actor_pids(served, "SweepController"))
    wait_for("the end of its processes", lambda: len(actor_pids(served, "TrainWorker")) <= 1, 90)
    assert_service_at_rest(served)


def test_kills_of_all_that_takes_part_lose_no_trial(served: Serving) -> None:
    pids: set[int] = set()
    job = {"entrypoint": "workers.recipes.digits:build", "epochs": 60, "batch": {"global_size": 64}}
    sweep_id = start(served, name="killed", trials=8, pruner="none", job=job)
    until(served, sweep_id, lambda sweep: num_ended(sweep) >= 1, pids)
    sigkill(*actor_pids(served, "SweepController"))
    until(served, sweep_id, lambda sweep: num_ended(sweep) >= 3, pids)
    sigkill_in_training(served)
    until(served, sweep_id, lambda sweep: num_ended(sweep) >= 5, pids)
    for part in ("reconciler", "api"):
        os.kill(served.pid_of(part), signal.SIGKILL)
    sweep = until(served, sweep_id, has_ended, pids)
    assert (sweep["state"], sweep["trials"]["complete"]) == ("SUCCEEDED", 8)
    assert_each_trial_was_one_job(served, sweep_id, 8)
    assert_service_at_rest(served)


def test_a_controller_that_hangs_with_those_of_its_trials_is_succeeded(served: Serving) -> None:
    pids: set[int] = set()
    job = {"entrypoint": "workers.recipes.digits:build", "epochs": 60, "batch": {"global_size": 64}}
    sweep_id = start(served, name="hung", trials=5, pruner="none", job=job)
    until(served, sweep_id, lambda sweep: num_ended(sweep) >= 1, pids)
    training(served)
    (hung,) = actor_pids(served, "SweepController")
    os.kill(hung, signal.SIGSTOP)
    sweep = until(served, sweep_id, has_ended, pids)
    assert (sweep["state"], sweep["trials"]["complete"]) == ("SUCCEEDED", 5)
    assert_each_trial_was_one_job(served, sweep_id, 5)
    assert_service_at_rest(served)
    wait_for("the end of the one that hung", lambda: not psutil.pid_exists(hung))  # Ray lets it end by itself at first
