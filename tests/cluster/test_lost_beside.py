"""The Ray node beside the service is lost, and with it every controller; workers elsewhere are adopted when it is back.

No step is lost, but where the head is replaced, too: the new one knows neither the node nor the job.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.beside import Beside, ray_beside
from tests.cluster.gated import Gated
from tests.cluster.serving import Serving, whole_service
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.network, pytest.mark.timeout(400)]

LIVENESS_S = 4.0


@pytest.fixture
def beside(request: pytest.FixtureRequest) -> Iterator[Beside]:
    cpus_there, cpus_here = request.param
    with ray_beside(cpus_there, cpus_here) as made:
        yield made


@pytest.fixture
def attached(beside: Beside, tmp_path: Path) -> Iterator[Serving]:
    settings, variables = {"liveness_s": LIVENESS_S, "gather_s": 60}, {"HOME": str(beside.home)}
    address, more = ("--ray-address", beside.address), {"inside": beside.apart(), "foreign": beside.foreign}
    with whole_service(tmp_path / "home", *address, settings=settings, variables=variables, **more) as started:
        yield started


def submit(attached: Serving, folder: Path, gates: list[int]) -> Gated:
    wait_for("the cluster", lambda: attached.cluster()["is_up"], 90)
    return Gated(attached, folder, config={"gates": gates})


def bring_back(beside: Beside, attached: Serving) -> None:
    """A node without CPUs, once the page has told what is missing, and what to do."""
    remedy = f"ray start --address={beside.address} --num-cpus=0"
    wait_for("word of the loss", lambda: remedy in (attached.cluster()["error"] or ""), 60)
    beside.start_node(0)
    wait_for("the cluster's return", lambda: attached.cluster()["is_up"], 60)


@pytest.mark.parametrize("beside", [(2, 0)], indirect=True)
def test_workers_elsewhere_train_on_and_are_adopted_and_a_new_head_at_the_same_address_gets_the_job_anew(
    beside: Beside, attached: Serving, tmp_path: Path
) -> None:
    job = submit(attached, tmp_path, [6, 12, 18])
    before = job.wait_at(6, 2)
    assert len(job.seen_by_the_oracle()) == 3, "a controller and two workers"
    beside.lose_node()
    job.open(6)
    assert sorted(job.wait_at(12, 2)) == sorted(before)
    bring_back(beside, attached)
    job.open(12)
    assert sorted(job.wait_at(18, 2)) == sorted(before)
    wait_for("the adoption", lambda: "controller_lost" in job.kinds(), 60)
    wait_for("a checkpoint", lambda: any(save.saved == 15 for save in job.saves()))
    assert job.job()["attempt"] == 1
    job.loses_all()
    beside.replace_head(2, blind=attached.process.pid)
    job.open(18)
    bring_back(beside, attached)
    assert job.wait_done()["attempt"] == 2
    (restore,) = [row for row in job.timeline() if row["kind"] == "restore"]
    assert restore["step"] == 15
    assert min(note.step for note in job.notes() if note.attempt == 2) == 16
    job.assert_nothing_broken()


@pytest.mark.parametrize("beside", [(1, 1)], indirect=True)
def test_a_worker_that_goes_with_the_controller_costs_no_step_while_another_lives(
    beside: Beside, attached: Serving, tmp_path: Path
) -> None:
    job = submit(attached, tmp_path, [6, 12])
    before = job.wait_at(6, 2)
    beside.lose_node()
    job.open(6)
    bring_back(beside, attached)
    (survivor,) = job.wait_at(12, 1)
    assert survivor in before
    job.open(12)
    assert job.wait_done()["attempt"] == 1
    job.assert_nothing_broken()
    (lost,) = [row for row in job.timeline() if row["kind"] == "worker_lost"]
    assert lost["steps_lost"] == 0
