"""PostgreSQL goes away while a real Ray trains: the job goes on, callers are put off, and no step is forgotten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import Connection, make_url, text

from service.folders import token_file
from tests.cluster.gated import STEP_S, Gated
from tests.cluster.serving import Serving, whole_service
from tests.faults.reading import read_database
from tests.service.conftest import postgres
from tests.service.given import spec_document
from tests.service.postgres import PostgresServer
from tests.tcp_proxy import TcpProxy, proxied_in_thread
from tests.waiting import wait_for

__all__ = ["postgres"]

pytestmark = [pytest.mark.cluster, pytest.mark.postgres, pytest.mark.timeout(280)]

LEASE_S = 2
STEPS = 24


@dataclass(frozen=True, slots=True)
class Link:
    """What lies between a service and its PostgreSQL, which ``direct`` leads to past it."""

    proxy: TcpProxy
    loop: asyncio.AbstractEventLoop
    direct: str

    @property
    def url(self) -> str:
        name = make_url(self.direct).database
        return f"postgresql+asyncpg://postgres@127.0.0.1:{self.proxy.port}/{name}?ssl=disable"

    def cut(self) -> None:
        """Every connection breaks, and whoever tries again is refused."""
        self.loop.call_soon_threadsafe(self.proxy.refuse)
        asyncio.run_coroutine_threadsafe(self.proxy.has_refused(), self.loop).result(STEP_S)

    def mend(self) -> None:
        self.proxy.is_refusing = False

    def read(self, query: str) -> list[Any]:
        def rows(connection: Connection) -> list[Any]:
            return list(connection.execute(text(query)).scalars())

        return read_database(self.direct, rows)


@pytest.fixture
def link(postgres: PostgresServer) -> Iterator[Link]:
    direct = postgres.empty("outage")
    with proxied_in_thread(lambda: asyncio.open_unix_connection(postgres.socket)) as (proxy, loop):
        yield Link(proxy, loop, direct)


@pytest.fixture
def served(link: Link, tmp_path: Path) -> Iterator[Serving]:
    settings = {"database": link.url, "leader_lease_s": LEASE_S}
    with whole_service(tmp_path / "home", settings=settings) as started:
        yield started
        link.mend()


@pytest.fixture
def caller(served: Serving) -> Iterator[httpx2.Client]:
    """One that takes the first answer, whatever it is."""
    headers = {"Authorization": f"Bearer {token_file(served.home).read_text().strip()}"}
    with httpx2.Client(base_url=served.url, headers=headers, trust_env=False, timeout=STEP_S) as client:
        yield client


def assert_told_away(caller: httpx2.Client, job_id: str) -> None:
    """Reads, wishes and submissions alike are put off."""
    path = f"/api/v1/jobs/{job_id}"
    answers = [
        caller.get(path),
        caller.get("/api/v1/jobs"),
        caller.get(f"{path}/metrics"),
        caller.post(f"{path}/pause"),
        caller.put(f"{path}/scale", json={"workers": 1}),
        caller.delete(path),
        submit_late(caller),
    ]
    told = {(answer.status_code, answer.headers.get("Retry-After"), answer.json()["code"]) for answer in answers}
    assert told == {(503, "1", "UNAVAILABLE")}
    assert [caller.get(path).status_code for path in ("/readyz", "/livez")] == [503, 200]


def submit_late(caller: httpx2.Client) -> httpx2.Response:
    document = {**spec_document(), "workers": 4}  # more than there is room for: it only waits
    return caller.post("/api/v1/jobs", json=document, headers={"Idempotency-Key": "late"})


def test_a_job_trains_on_and_ends_while_its_database_is_away_and_all_of_it_is_recorded_once(
    link: Link, served: Serving, caller: httpx2.Client, tmp_path: Path
) -> None:
    job = Gated(served, tmp_path, steps=STEPS, config={"gates": [6, 12, 18]})
    before = job.wait_at(6, 2)
    wait_for("the job's start", lambda: job.job()["state"] == "RUNNING")
    parts = [served.pid_of(part) for part in ("api", "reconciler")]
    link.cut()
    job.open(6)
    assert_told_away(caller, job.id)
    wait_for("both at the next gate", lambda: sorted(job.standing_at(12)) == sorted(before), STEP_S)
    wait_for("the end of the lease", lambda: link.read("SELECT lease_until FROM installation")[0] < time.time())
    assert max(link.read("SELECT step FROM points"), default=0) < 6, "the database was not away"
    link.mend()
    job.wait_told(11)
    job.open(12)
    job.wait_at(18, 2)
    link.cut()
    job.open(18)
    wait_for("its last step", lambda: sum(note.step == STEPS for note in job.notes()) == 2, STEP_S)
    assert_told_away(caller, job.id)
    link.mend()
    assert job.wait_done()["attempt"] == 1
    assert sorted(point["step"] for point in job.points()) == list(range(1, STEPS + 1))
    assert [to for to, _ in job.events()] == ["QUEUED", "STARTING", "RUNNING", "SUCCEEDED"]
    assert "controller_lost" not in job.kinds()
    assert [served.pid_of(part) for part in ("api", "reconciler")] == parts
    late = submit_late(caller)
    assert (late.status_code, submit_late(caller).status_code) == (201, 200)
    assert caller.post(f"/api/v1/jobs/{late.json()['id']}/cancel").status_code == 200
    job.assert_nothing_broken()
