"""A process that waits with torch loaded becomes a worker like any other; told by process ids."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.settings import load_settings
from tests.cluster.gated import Gated, actor_pids, sigkill
from tests.cluster.judging import remains_of
from tests.cluster.serving import Serving
from tests.faults.evidence import gather
from tests.waiting import wait_for
from workers.assignment import JobKey
from workers.control.names import worker_name

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NUM_CPUS = 3.0
Submit = Callable[..., Gated]


@pytest.fixture
def submit(served: Serving, tmp_path: Path) -> Iterator[Submit]:
    made: list[Gated] = []

    def make(**changes: Any) -> Gated:
        made.append(Gated(served, tmp_path, workers={"min": 1, "max": 1}, **changes))
        return made[-1]

    yield make
    for job in made:
        job.end()


def test_a_spare_becomes_a_worker_with_room_of_its_own_and_is_adopted_and_replaced_as_one(
    served: Serving, submit: Submit
) -> None:
    spare = the_spare(served)
    job = submit(config={"gates": [4, 8, 16]})
    assert job.wait_at(4, 1) == [spare]
    wait_for("its room to be taken", lambda: free_cpus(served) == NUM_CPUS - 1)
    remains = remains_of(served.home, gather(load_settings({"home": served.home}, {})).installation)
    assert set(remains.groups.values()) == {worker_name(JobKey(job_id=job.id, attempt=1), "1.1")}
    assert set(remains.groups.values()) < set(remains.names)
    sigkill(*actor_pids(served, "JobController"))
    job.open(4)
    assert job.wait_at(8, 1) == [spare]
    wait_for("the adoption", lambda: "controller_lost" in job.kinds())
    job.wait_told(7)
    job.loses_all()
    sigkill(spare)
    job.open(8)
    assert job.wait_at(16, 1) != [spare]
    job.open(16)
    job.wait_done()
    job.assert_nothing_broken()
    wait_for("all room to be free again", lambda: free_cpus(served) == NUM_CPUS)


def test_a_spare_that_hangs_is_ended_and_the_worker_starts_without_it(served: Serving, submit: Submit) -> None:
    spare = the_spare(served)
    os.kill(spare, signal.SIGSTOP)
    job = submit(config={"gates": [4]})
    assert job.wait_at(4, 1) != [spare]
    # Ray lets a process some seconds to end by itself.
    wait_for("the end of the spare that hung", lambda: not psutil.pid_exists(spare))
    job.open(4)
    job.wait_done()
    job.assert_nothing_broken()


def test_a_worker_with_variables_of_its_own_is_a_new_process(served: Serving, submit: Submit) -> None:
    spare = the_spare(served)
    job = submit(config={"gates": [4]}, env={"MKL_NUM_THREADS": "2"})
    assert job.wait_at(4, 1) != [spare]
    job.open(4)
    job.wait_done()
    assert psutil.pid_exists(spare)
    job.assert_nothing_broken()


def the_spare(served: Serving) -> int:
    """Wait until a spare is there; its process."""
    found: list[int] = []

    def is_there() -> bool:
        found[:] = spares(served)
        return len(found) == 1

    wait_for("a spare", is_there, 60)
    return found[0]


def spares(served: Serving) -> list[int]:
    return [pid for pid in actor_pids(served, "TrainWorker") if not writes_log_of_job(pid)]


def writes_log_of_job(pid: int) -> bool:
    try:
        return "scratch" in Path(os.readlink(f"/proc/{pid}/fd/1")).parts
    except FileNotFoundError:
        return True  # it has ended meanwhile


def free_cpus(served: Serving) -> float:
    return float(served.cluster()["resources"]["cpus"]["free"])
