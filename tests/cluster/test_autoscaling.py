"""A real autoscaler: a node comes for a job that does not fit, or to be faster, is trained on at once, and goes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from tests.cluster.autoscaled import IDLE_S, LOOPBACK, autoscaled_ray
from tests.cluster.foreign_ray import Foreign
from tests.cluster.gated import Gated
from tests.cluster.serving import Serving, whole_service
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(380)]


ASKED, NO_MORE = "The autoscaler was asked for nodes for gated.", "The autoscaler is asked for no more nodes."
USED_S = 60.0
"""From the start of a node's process, which comes before Ray counts the node, to the first step that it takes part in.

Seconds where the processors are free; most of it goes into starting Ray's own processes and loading torch.
"""


@pytest.fixture(scope="module")
def scaled() -> Iterator[tuple[str, Foreign]]:
    with autoscaled_ray(max_nodes=1) as made:
        yield made


@pytest.fixture(scope="module")
def address(scaled: tuple[str, Foreign]) -> str:
    return scaled[0]


@pytest.fixture(scope="module")
def attached(scaled: tuple[str, Foreign], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    home = tmp_path_factory.mktemp("scaled") / "home"
    address, foreign = scaled
    with whole_service(home, "--ray-address", address, variables=LOOPBACK, foreign=foreign) as started:
        yield started


def num_nodes(attached: Serving) -> int:
    return sum(node["is_alive"] for node in attached.cluster()["nodes"])


def newest_raylet(address: str) -> float:
    """When the newest node of this Ray was started, in Unix seconds."""
    started = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() == "raylet" and any(address in word for word in process.cmdline()):
                started.append(process.create_time())
    assert len(started) == 2, "the head and the node that came"
    return max(started)


def counted_at(attached: Serving) -> float:
    """When the service saw the newest node for the first time, in Unix seconds."""
    came = [event["time"] for event in attached.cluster()["events"] if event["text"].endswith(" came.")]
    return max(datetime.fromisoformat(time).timestamp() for time in came)


def tell(what: str, at: float, came: float, attached: Serving) -> None:
    """What README says of it."""
    since = f"{at - came:.1f} s after the start of the node's process"
    print(f"{what} {since}, {at - counted_at(attached):.1f} s after the service saw the node")


def used_at(job: Gated, num_workers: int) -> float:
    """When the first step of so many workers was done, by its record, in Unix seconds."""
    times = [point["time"] for point in job.points() if point["values"]["workers"] == num_workers]
    return min(datetime.fromisoformat(time).timestamp() for time in times)


def test_a_node_comes_for_a_job_that_does_not_fit_and_goes_when_the_job_is_done(
    attached: Serving, address: str, tmp_path: Path
) -> None:
    wait_for("the autoscaler's first word", lambda: attached.cluster()["autoscaling"] is not None)
    job = Gated(attached, tmp_path, workers=2, config={"gates": [4]})
    try:
        asked = []

        def is_asked() -> bool:
            asked[:] = [each := attached.cluster()["autoscaling"]]
            return bool(each["wanted_by"] == [job.id])

        def explained() -> str:
            with attached.client() as client:
                return str(client.get(f"/jobs/{job.id}/explain")["summary"])

        wait_for("the demand", is_asked)
        assert "gated" in " ".join(asked[0]["told"])
        wait_for("word of it", lambda: "waits for nodes with room for 1 worker;" in explained(), told=explained)
        wait_for("the node", lambda: num_nodes(attached) == 2, 60)
        job.wait_at(4, 2)
        came = newest_raylet(address)
        job.open(4)
        job.wait_done()
        job.assert_nothing_broken()
        tell("the first step", used_at(job, 2), came, attached)
        assert used_at(job, 2) - came <= USED_S
        assert {point["values"]["workers"] for point in job.points()} == {2}
        wait_for("the node's end", lambda: num_nodes(attached) == 1, IDLE_S + 60)
        assert attached.cluster()["autoscaling"]["wanted_by"] == []
        told = [event["text"] for event in reversed(attached.cluster()["events"])]
        # Asked anew by a reconciler that came after another one.
        assert told[0] == ASKED
        until_it_came = " ".join(told).replace(f"{NO_MORE} {ASKED} ", "").removeprefix(f"{ASKED} ")
        assert re.fullmatch(r"Node .* came\. .*Node .* went\.", until_it_came)
    finally:
        job.end()


def test_an_elastic_job_gets_a_node_to_grow_onto_while_a_hopeless_one_waits(
    attached: Serving, address: str, tmp_path: Path
) -> None:
    """It has long to go, so that a machine just to be faster pays."""
    wait_for("the head alone", lambda: num_nodes(attached) == 1, IDLE_S + 60)
    huge = Gated(attached, tmp_path / "huge", name="huge", workers=1, resources={"cpus": 1000})

    def told() -> str:
        with attached.client() as client:
            return " ".join(client.get(f"/jobs/{huge.id}/explain")["details"])

    wait_for("the refusal", lambda: "no kind of node" in told() and "holds nobody up" in told(), 60, told=told)
    job = Gated(attached, tmp_path, steps=5000, workers={"min": 1, "max": 2}, config={"pace_s": 0.2})
    try:
        wait_for("two workers", lambda: job.job()["workers"]["current"] == 2, 120)
        came = newest_raylet(address)
        wait_for("a step of both", lambda: any(point["values"]["workers"] == 2 for point in job.points()))
        tell("the first step of both", used_at(job, 2), came, attached)
        assert used_at(job, 2) - came <= USED_S
    finally:
        job.end()
        huge.end()
    (grown,) = [row for row in job.timeline() if row["kind"] == "resize" and row["after"]["workers"] == 2]
    assert (grown["actor"], grown["before"]["workers"], grown["steps_lost"]) == ("scaling", 1, 0)
    assert {point["values"]["workers"] for point in job.points()} == {1, 2}
    job.assert_nothing_broken()
