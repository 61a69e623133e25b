"""Two machines and somebody else's Ray, which asks for a token: attached to; one is drained, cut off, without power.

No step is lost.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from service.avoidance import INCIDENT_S
from service.records import Duty
from tests.cluster.gated import FOUND_MARGIN_S, Gated, actors, sigkill
from tests.cluster.judging import assert_service_at_rest
from tests.cluster.machines import Machines, two_machines
from tests.cluster.serving import Serving, whole_service
from tests.waiting import wait_for
from workers.control.head import UNSURE
from workers.control.reach import PATIENCE

pytestmark = [pytest.mark.cluster, pytest.mark.network, pytest.mark.timeout(400)]

LIVENESS_S = 4.0
CPUS_HERE, CPUS_THERE = 2, 1
THREE = {"min": 1, "max": 3}


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with two_machines(CPUS_HERE, CPUS_THERE) as made:
        yield made


@pytest.fixture(scope="module")
def attached(machines: Machines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    home, variables = tmp_path_factory.mktemp("attached") / "home", {"HOME": str(machines.folder)}
    settings = {"liveness_s": LIVENESS_S, "evacuate_s": 1, "gather_s": 60}
    flags, foreign = ("--ray-address", machines.address), machines.foreign
    with whole_service(home, *flags, settings=settings, variables=variables, foreign=foreign) as started:
        yield started
    wait_for("the end of the spare there", lambda: not {*actors("TrainWorker")} & machines.pids_there())


@pytest.fixture
def job(attached: Serving, machines: Machines, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Gated]:
    """A job that begins when both machines are there."""

    def are_idle() -> bool:
        found = nodes(attached)
        has_all_room = all(node["free"]["cpus"] == node["total"]["cpus"] for node in found.values())
        return {machines.here, machines.there} <= found.keys() and has_all_room

    wait_for("both nodes, and nobody on them", are_idle, 90)
    say(attached, machines.there, "uncordon")  # what others have lost there is past
    made = begun(attached, tmp_path, **request.param)
    yield made
    made.end()


def begun(served: Serving, folder: Path, **changes: Any) -> Gated:
    """A job that begins with all its workers, which wait to build for that.

    By itself it would begin with those that there is room for at first, and let the others in between two steps.
    """
    made = Gated(served, folder, **changes)
    made.wait_at("build", CPUS_HERE + CPUS_THERE)
    made.open("build")
    return made


def gates(*steps: int, **more: Any) -> dict[str, Any]:
    return {"config": {"gates": list(steps), "waits_to_build": True}, "workers": THREE, **more}


def nodes(attached: Serving) -> dict[str, dict[str, Any]]:
    """By address: Ray names a node so."""
    return {node["name"]: node for node in attached.cluster()["nodes"] if node["is_alive"]}


def renew(machines: Machines, attached: Serving) -> None:
    """The other machine starts again. A job that begins while its old node still counts waits for that to be dead."""

    def ids(is_needed: Callable[[dict[str, Any]], bool]) -> set[str]:
        found = attached.cluster()["nodes"]
        return {node["id"] for node in found if node["name"] == machines.there and is_needed(node)}

    past = ids(lambda _: True)
    machines.renew_there(CPUS_THERE)

    def is_new() -> bool:
        living = ids(lambda node: node["is_alive"])
        return bool(living) and not living & past

    wait_for("the other machine, started again", is_new, 90)


def say(attached: Serving, node: str, verb: str) -> None:
    with attached.client() as client:
        client.mark_node(node, verb, "a test")


@pytest.mark.parametrize("job", [gates(4, 12)], indirect=True)
def test_workers_on_both_machines_train_together_and_leave_a_drained_one(
    job: Gated, attached: Serving, machines: Machines
) -> None:
    pids = job.wait_at(4, 3)
    assert len(machines.pids_there() & set(pids)) == 1
    assert len(job.seen_by_the_oracle()) == 4, "a controller and three workers"
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


@pytest.mark.parametrize("job", [gates(4, 12)], indirect=True)
def test_a_notice_that_a_machine_is_taken_away_is_used_before_it_goes(
    job: Gated, attached: Serving, machines: Machines
) -> None:
    before = job.wait_at(4, 3)
    machines.announce_end(nodes(attached)[machines.there]["id"], after_s=60)
    wait_for("the plan without it", lambda: any(row["actor"] == "cluster" for row in job.timeline()))
    job.open(4)
    after = job.wait_at(12, 2)
    assert set(after) < set(before)
    wait_for("the end of the worker there", lambda: not machines.pids_there() & set(before))
    machines.lose_there()
    try:
        job.open(12)
        job.wait_done()
    finally:
        renew(machines, attached)
    job.assert_nothing_broken()
    (moved,) = [row for row in job.timeline() if row["actor"] == "cluster"]
    assert (moved["kind"], moved["before"]["workers"], moved["after"]["workers"]) == ("resize", 3, 2)
    assert f"the cluster is taking node {machines.there} away" in moved["reason"]
    assert moved["steps_lost"] == 0
    assert "worker_lost" not in job.kinds()


@pytest.mark.parametrize("job", [gates(6, 12)], indirect=True)
def test_a_worker_whose_network_is_cut_is_left_behind_and_ends_without_another_step_when_it_is_back(
    job: Gated, attached: Serving, machines: Machines
) -> None:
    pids = job.wait_at(6, 3)
    (cut,) = machines.pids_there() & set(pids)
    cut_at = time.time()
    machines.cut()
    try:
        job.open(6)
        assert cut not in job.wait_at(12, 2)
        assert_told_as_lost(job)
        print(f"found after {job.found_after_s(cut_at):.2f} s")
        assert job.silent_s() <= LIVENESS_S + FOUND_MARGIN_S
        assert cut in machines.pids_there()
        machines.mend()
        wait_for("the end of the worker that was cut off", lambda: cut not in machines.pids_there())
    finally:
        renew(machines, attached)
    job.open(12)
    job.wait_done()
    job.assert_nothing_broken()
    assert [note.step for note in job.notes() if note.pid == cut] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("job", [gates(6, 12)], indirect=True)
def test_a_machine_that_loses_its_power_costs_no_step_and_is_drained_still_when_it_is_back(
    job: Gated, attached: Serving, machines: Machines
) -> None:
    job.wait_at(6, 3)
    machines.lose_there()
    try:
        job.open(6)
        job.wait_at(12, 2)
        assert_told_as_lost(job)
        say(attached, machines.there, "drain")
        machines.mend()  # its address answers again that nobody is there, which Ray believes sooner than silence
        wait_for("the loss of the node on the page", lambda: machines.there not in nodes(attached), 90)
        job.open(12)
        job.wait_done()
    finally:
        renew(machines, attached)
    wait_for("the word on it", lambda: nodes(attached)[machines.there]["duty"] == Duty.DRAINED)
    told = attached.cluster()["events"][0]["text"]
    assert told == f"Node {machines.there} has come back, and is drained as it was: a test."
    job.assert_nothing_broken()


@pytest.mark.parametrize(
    "job",
    [{"config": {"gates": [*range(4, 29, 4)], "waits_to_build": True}, "workers": THREE, "steps": 30}],
    indirect=True,
)
def test_a_node_that_loses_three_workers_is_quarantined_until_somebody_uncordons_it(
    job: Gated, attached: Serving, machines: Machines
) -> None:
    """They are lost one after another, further apart than what has one cause; the job goes on, at last without it.

    Whoever takes the third one's place there is kept from being let in before the quarantine.
    """
    steps = iter(range(4, 25, 4))
    for num in (1, 2, 3):
        at = next(steps)
        pids = job.wait_at(at, 3)
        (victim,) = machines.pids_there() & set(pids)
        wait_for("another cause", lambda: time.time() > last_loss(job) + INCIDENT_S + 1)
        assert nodes(attached)[machines.there]["duty"] == Duty.ACTIVE, f"after {num - 1} losses"
        if num == 3:
            job.shut("build")
        sigkill(victim)
        job.open(at)
        at = next(steps)
        wait_for("the loss", lambda num=num: job.kinds().count("worker_lost") == num)  # type: ignore[misc]
        if num < 3:
            job.wait_newcomer(pids)
            job.open(at)
    wait_for("the quarantine", lambda: nodes(attached)[machines.there]["duty"] == Duty.QUARANTINED)
    assert nodes(attached)[machines.there]["duty_reason"] == "jobs lost workers on it 3 times within 10 minutes"
    wait_for("the end of whoever came again", lambda: not there(job, machines))
    survivors = job.wait_at(at, 2)
    job.open("build")
    say(attached, machines.there, "uncordon")
    newcomer = job.wait_newcomer(survivors)
    assert newcomer in machines.pids_there()
    job.open(at)
    assert newcomer in job.wait_at(at + 4, 3)
    assert nodes(attached)[machines.there]["duty"] == Duty.ACTIVE
    job.open(at + 4)
    job.wait_done()
    job.assert_nothing_broken()
    assert all(row["steps_lost"] == 0 for row in job.timeline() if row["kind"] == "worker_lost")


def there(job: Gated, machines: Machines) -> set[int]:
    """Its workers on the other machine."""
    return {int(worker["pid"]) for worker in job.workers()} & machines.pids_there()


def last_loss(job: Gated) -> float:
    """When its last loss was found, in Unix seconds; 0 where there is none."""
    times = [row["time"] for row in job.timeline() if row["kind"] == "worker_lost"]
    return max((datetime.fromisoformat(time).timestamp() for time in times), default=0.0)


STRAGGLING_TASK = """
import time
from pathlib import Path

import torch
from torch import nn

from workers.task import TrainingTask


def build(config):
    try:
        (Path(config["folder"]) / "slow").touch(exist_ok=False)
        pass_s = 0.2
    except FileExistsError:
        pass_s = 0.001
    data = torch.utils.data.TensorDataset(torch.ones(4096, 2), torch.ones(4096, 1))

    def loss(model, batch):
        time.sleep(pass_s)
        return (model(batch[0]) - batch[1]).square().mean()

    return TrainingTask(model=nn.Linear(2, 1), train_data=data, loss=loss)
"""


def test_who_holds_the_others_up_whatever_its_part_is_relieved_by_a_worker_on_the_other_machine(
    attached: Serving, machines: Machines, tmp_path: Path
) -> None:
    wait_for("both nodes", lambda: {machines.here, machines.there} <= nodes(attached).keys(), 90)
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(STRAGGLING_TASK)
    say(attached, machines.there, "drain")  # so that both begin here
    two = {"workers": {"min": 2, "max": 2}, "batch": {"global_size": 64}, "steps": 1_000_000}
    job = Gated(attached, tmp_path, code=code, **two)
    try:
        wait_for("the first step", lambda: job.job()["progress"]["step"] > 0, 90)
        say(attached, machines.there, "uncordon")
        wait_for("its relief", lambda: "worker_joined" in job.kinds(), 180)
        step = job.job()["progress"]["step"]
        # With the straggler so many take 200 s.
        wait_for("steps without it", lambda: job.job()["progress"]["step"] > step + 1000, 150)
    finally:
        say(attached, machines.there, "uncordon")
        job.end()
    named = next(row for row in job.timeline() if row["kind"] == "limit")
    joined = next(row for row in job.timeline() if row["kind"] == "worker_joined")
    slow = named["after"]["worker_id"]
    assert named["reason"].startswith(f"worker {slow} cannot be balanced away")
    assert joined["actor"] == "shares"
    assert f"takes the place of worker {slow} on node" in joined["reason"]
    assert joined["steps_lost"] == 0
    assert "worker_lost" not in job.kinds()
    assert_service_at_rest(attached)


@pytest.fixture
def afar(machines: Machines, tmp_path: Path) -> Iterator[Serving]:
    """Another service: its own node is the other machine, Ray's head is not."""
    flags = ("--ray-address", machines.address, "--host", machines.there)
    hosts = {"behind_proxy": True, "allowed_hosts": [machines.there]}
    settings = {"liveness_s": LIVENESS_S, "gather_s": 60, **hosts}
    variables, more = {"HOME": str(machines.folder)}, {"inside": machines.inside, "foreign": machines.foreign}
    with whole_service(tmp_path / "home", *flags, settings=settings, variables=variables, **more) as started:
        yield started


def test_a_controller_that_is_cut_off_from_rays_head_leaves_nobody_behind(
    afar: Serving, machines: Machines, tmp_path: Path
) -> None:
    wait_for("both nodes", lambda: {machines.here, machines.there} <= nodes(afar).keys(), 90)
    job = begun(afar, tmp_path, **gates(6, 12))
    try:
        pids = job.wait_at(6, 3)
        machines.cut()
        try:
            job.open(6)
            wait_for("its doubt", lambda: machines.is_told_there(UNSURE), 60)
        finally:
            machines.mend()
        assert set(job.wait_at(12, 3)) == set(pids)
        job.open(12)
        job.wait_done()
    finally:
        job.end()
    job.assert_nothing_broken()
    assert "worker_lost" not in job.kinds()


def test_a_lone_worker_that_hangs_is_found_as_soon_as_one_of_many(
    attached: Serving, machines: Machines, tmp_path: Path
) -> None:
    """Nobody else of the job answers: what tells that the network is not to blame is the other machine."""
    wait_for("both nodes", lambda: {machines.here, machines.there} <= nodes(attached).keys(), 90)
    say(attached, machines.here, "drain")
    job = Gated(attached, tmp_path, config={"gates": [8]}, workers=1)
    try:
        (pid,) = job.wait_at(8, 1)
        assert pid in machines.pids_there()
        job.wait_told(7)
        wait_for("something to go on from", job.saves)
        job.loses_all()
        os.kill(pid, signal.SIGSTOP)
        (job.folder / f"at-8-{pid}").unlink()
        assert job.wait_at(8, 1) != [pid]
        job.open(8)
        job.wait_done()
    finally:
        say(attached, machines.here, "uncordon")
        job.end()
    job.assert_nothing_broken()
    (restore,) = [row for row in job.timeline() if row["kind"] == "restore"]
    assert restore["reason"].startswith("training from the checkpoint of step 5")
    assert job.silent_s() <= LIVENESS_S + FOUND_MARGIN_S < PATIENCE * LIVENESS_S


def assert_told_as_lost(job: Gated) -> None:
    """One row tells of the silent worker, and that no step was lost."""
    job.wait_told(11)
    (lost,) = [row for row in job.timeline() if row["kind"] == "worker_lost"]
    assert (lost["before"]["workers"], lost["after"]["workers"]) == (3, 2)
    assert "silent" in lost["reason"]
    assert lost["steps_lost"] == 0, lost
