"""Two machines and somebody else's Ray: attached to, and one of them drained; no step is lost."""

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
    (home / "config.toml").write_text(f"liveness_s = {LIVENESS_S}\nevacuate_s = 1\ngather_s = 60\n")
    try:
        with serving(home, "--ray-address", machines.address) as started:
            yield started
            assert started.stop() == 0
    finally:
        end_everything(home)


@pytest.fixture
def job(attached: Serving, machines: Machines, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Gated]:
    """A job that begins when both machines are there."""
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
