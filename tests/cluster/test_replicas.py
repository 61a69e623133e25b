"""Two services on one PostgreSQL and one Ray, as a team has them: the leader is stopped, succeeded, and wakes."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from service.settings import load_settings
from service.supervise.ports import free_port
from tests.cluster.foreign_ray import LOOPBACK, Foreign, end_ray, start_head
from tests.cluster.gated import Gated
from tests.cluster.judging import assert_service_at_rest, remains_of
from tests.cluster.serving import Serving, configure, end_everything, serving
from tests.faults.evidence import Evidence, gather
from tests.service.conftest import postgres
from tests.service.postgres import PostgresServer
from tests.waiting import wait_for

__all__ = ["postgres"]

pytestmark = [pytest.mark.cluster, pytest.mark.postgres, pytest.mark.timeout(300)]

LEASE_S = 3
GATHER_S = 60
"""A second worker may take its time on a busy machine; the test stops both at the same step."""
FENCED_OUT = "ended with exit code 73"


@pytest.fixture
def ray_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the files of a Ray lie that both services attach to; its address is in their environment."""
    folder, port = Path(tempfile.mkdtemp(prefix="ct-team-")), free_port()
    try:
        for name, value in {**LOOPBACK, "CONCERTINA_RAY_ADDRESS": f"127.0.0.1:{port}"}.items():
            monkeypatch.setenv(name, value)
        start_head(folder, "--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=3", variables=LOOPBACK)
        yield folder
    finally:
        end_ray(folder)


@pytest.fixture
def homes(postgres: PostgresServer, ray_folder: Path, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Two homes with one database and one storage."""
    made = (tmp_path / "first", tmp_path / "second")
    shared = {"database": postgres.empty("team"), "storage": str(tmp_path / "storage")}
    for home in made:
        configure(home, {**shared, "leader_lease_s": LEASE_S, "gather_s": GATHER_S})
    yield made
    for home in made:
        end_everything(home)


def evidence(home: Path) -> Evidence:
    return gather(load_settings({"home": home}, {}))


def stop(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def wake(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def succeeded(home: Path, known: int) -> None:
    wait_for("another leader", lambda: evidence(home).fence > known)


def test_a_leader_that_is_stopped_is_succeeded_and_does_no_harm_when_it_wakes(
    homes: tuple[Path, Path], ray_folder: Path, tmp_path: Path
) -> None:
    with serving(homes[0], foreign=Foreign(folder=ray_folder)) as first:
        wait_for("a leader", lambda: evidence(homes[0]).fence == 1)
        with serving(homes[1]) as second:
            job = Gated(first, tmp_path, config={"gates": [6, 12, 18]})
            before = job.wait_at(6, 2)
            assert len(remains_of(homes[0], evidence(homes[0]).installation, first.foreign).names) == 3
            one = first.pid_of("reconciler")
            stop(one)
            succeeded(homes[0], 1)
            job.open(6)
            assert sorted(job.wait_at(12, 2)) == sorted(before)
            job.wait_told(11)  # by the second, into the database of both
            wake(one)
            wait_for("the end of the one that woke", lambda: FENCED_OUT in first.told)
            whole = group(second)
            stop(*whole)
            succeeded(homes[0], 2)
            job.open(12)
            assert sorted(job.wait_at(18, 2)) == sorted(before)
            job.wait_told(17)
            wake(*whole)
            wait_for("the end of the other one that woke", lambda: FENCED_OUT in second.told)
            job.open(18)
            assert job.wait_done()["attempt"] == 1
            assert_service_at_rest(first, homes[1], notes=job.notes(), saves=job.saves())
            assert [to for to, _ in job.events()] == ["QUEUED", "STARTING", "RUNNING", "SUCCEEDED"]
            assert "controller_lost" not in job.kinds()
            assert not re.search("Traceback", first.told + second.told)
            assert second.stop() == first.stop() == 0


def group(served: Serving) -> list[int]:
    """A service with all its processes, the parent first."""
    own = psutil.Process(served.process.pid)
    return [process.pid for process in (own, *own.children(recursive=True))]
