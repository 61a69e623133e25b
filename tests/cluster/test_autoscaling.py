"""A real autoscaler: a node comes for a job that does not fit, the job trains on it, and the node goes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.autoscaled import IDLE_S, LOOPBACK, autoscaled_ray
from tests.cluster.gated import Gated
from tests.cluster.serving import Serving, whole_service
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(280)]


@pytest.fixture
def attached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    for name, value in LOOPBACK.items():
        monkeypatch.setenv(name, value)
    with (
        autoscaled_ray(max_nodes=1) as address,
        whole_service(tmp_path / "home", "--ray-address", address) as started,
    ):
        yield started


def num_nodes(attached: Serving) -> int:
    return sum(node["is_alive"] for node in attached.cluster()["nodes"])


def test_a_node_comes_for_a_job_that_does_not_fit_and_goes_when_the_job_is_done(
    attached: Serving, tmp_path: Path
) -> None:
    wait_for("the autoscaler's first word", lambda: attached.cluster()["autoscaling"] is not None)
    job = Gated(attached, tmp_path, workers=2, config={"gates": [1]})
    began_s = time.monotonic()
    try:

        def explained() -> str:
            with attached.client() as client:
                return str(client.get(f"/jobs/{job.id}/explain")["summary"])

        wait_for("the demand", lambda: attached.cluster()["autoscaling"]["wanted_by"] == [job.id])
        assert "gated" in " ".join(attached.cluster()["autoscaling"]["told"])
        assert "waits for nodes with room for 1 worker;" in explained()
        wait_for("the node", lambda: num_nodes(attached) == 2, 60)
        came_s = time.monotonic()
        job.wait_at(1, 2)
        print(f"node after {came_s - began_s:.1f} s, both workers at step 1 {time.monotonic() - came_s:.1f} s later")
        job.open(1)
        job.wait_done()
        job.assert_nothing_broken()
        assert {point["values"]["workers"] for point in job.points()} == {2}
        wait_for("the node's end", lambda: num_nodes(attached) == 1, IDLE_S + 60)
        assert attached.cluster()["autoscaling"]["wanted_by"] == []
        told = [event["text"] for event in reversed(attached.cluster()["events"])]
        assert told[:1] == ["The autoscaler was asked for nodes for gated."]
        assert re.fullmatch(r"Node .* came\. .*Node .* went\.", " ".join(told[1:]))
    finally:
        job.end()
