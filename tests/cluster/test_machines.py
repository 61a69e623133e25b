"""Two machines and somebody else's Ray: attached to, drained, cut off, and lost; no step is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.gated import Gated
from tests.cluster.machines import Machines, two_machines
from tests.cluster.serving import Serving, end_everything, serving
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.network, pytest.mark.timeout(400)]

LIVENESS_S = 4.0


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with two_machines(cpus_here=2, cpus_there=1) as made:
        yield made


@pytest.fixture(scope="module")
def attached(machines: Machines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    home = tmp_path_factory.mktemp("attached") / "home"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(f"liveness_s = {LIVENESS_S}\nevacuate_s = 1\n")
    try:
        with serving(home, "--ray-address", machines.address) as started:
            yield started
            assert started.stop() == 0
    finally:
        end_everything(home)


@pytest.fixture
def job(attached: Serving, machines: Machines, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Gated]:
    """A job that begins when both machines are there; a test before may have lost the other one."""
    if not machines.has_raylet_there():
        machines.kill_there()
        machines.start_there(num_cpus=1)
    wait_for("both nodes", lambda: {machines.here, machines.there} <= nodes(attached).keys(), 90)
    made = Gated(attached, tmp_path, **getattr(request, "param", {}))
    yield made
    made.end()


def gates(*steps: int, **more: Any) -> dict[str, Any]:
    return {"config": {"gates": list(steps)}, "workers": {"min": 1, "max": 3}, **more}


def nodes(attached: Serving) -> dict[str, dict[str, Any]]:
    """By address: Ray names a node so."""
    with attached.client() as client:
        return {node["name"]: node for node in client.get("/cluster")["nodes"] if node["is_alive"]}


def say(attached: Serving, node: str, verb: str) -> None:
    with attached.client() as client:
        client.mark_node(node, verb, "a test")


@pytest.mark.parametrize("job", [gates(4, 12)], indirect=True)
def test_workers_on_both_machines_train_together_and_leave_a_drained_one(
    job: Gated, attached: Serving, machines: Machines
) -> None:
    pids = job.wait_at(4, 3)
    assert len(machines.pids_there() & set(pids)) == 1
    say(attached, machines.there, "drain")
    wait_for("the plan without it", lambda: any(row["actor"] == "admin" for row in job.timeline()))
    job.open(4)
    pids = job.wait_at(12, 2)
    assert not machines.pids_there() & set(pids)
    say(attached, machines.there, "uncordon")
    job.open(12)
    job.wait_done()
    job.assert_nothing_broken()
    (moved,) = [row for row in job.timeline() if row["actor"] == "admin"]
    assert (moved["kind"], moved["before"]["workers"], moved["after"]["workers"]) == ("resize", 3, 2)
    assert f"node {machines.there} is drained: a test" in moved["reason"]
    assert moved["steps_lost"] == 0


@pytest.mark.parametrize("job", [gates(6, 12, steps=30)], indirect=True)
def test_a_worker_whose_cable_is_pulled_is_found_and_left_behind(
    job: Gated, attached: Serving, machines: Machines
) -> None:
    pids = job.wait_at(6, 3)
    (far,) = machines.pids_there() & set(pids)
    machines.cut()
    try:
        job.open(6)
        job.wait_at(12, 2)
        wait_for("the loss in the timeline", lambda: "worker_lost" in job.kinds())
        job.open(12)
        job.wait_done()
    finally:
        machines.mend()
    job.assert_nothing_broken()
    lost = next(row for row in job.timeline() if row["kind"] == "worker_lost")
    assert lost["steps_lost"] == 0
    wait_for("the end of the worker that was cut off", lambda: far not in machines.pids_there(), 120)


@pytest.mark.parametrize("job", [gates(6, 12)], indirect=True)
def test_a_machine_that_loses_its_power_takes_no_step_with_it(
    job: Gated, attached: Serving, machines: Machines
) -> None:
    job.wait_at(6, 3)
    machines.kill_there()
    job.open(6)
    job.wait_at(12, 2)
    job.open(12)
    job.wait_done()
    job.assert_nothing_broken()
    assert next(row for row in job.timeline() if row["kind"] == "worker_lost")["steps_lost"] == 0
