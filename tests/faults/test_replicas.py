"""Two replicas on one PostgreSQL under mixed load: what either has is killed, who leads stopped, theirs restarted."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import httpx2
import pytest

from service.folders import token_file
from service.reconciler.process import Exit
from service.settings import load_settings
from tests.faults.load import Load
from tests.faults.noted import noted_spec
from tests.faults.processes import API, RECONCILER, Installation
from tests.faults.settling import fence, judged, until
from tests.service.conftest import postgres
from tests.service.postgres import PostgresServer
from tests.waiting import wait_for

__all__ = ["postgres"]

pytestmark = [pytest.mark.anyio, pytest.mark.faults, pytest.mark.postgres, pytest.mark.timeout(400)]

NUM_KILLS, NUM_SUCCESSIONS, NUM_RESTARTS, SEED = 30, 4, 6, 11
LEADER_LEASE_S = 1.0


class Balanced(httpx2.AsyncHTTPTransport):
    """Sends each request to one of several addresses, as a load balancer in front of replicas does."""

    def __init__(self, urls: Sequence[str], rng: random.Random) -> None:
        super().__init__()
        self._urls, self._rng = [httpx2.URL(url) for url in urls], rng

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        chosen = self._rng.choice(self._urls)
        request.url = request.url.copy_with(host=chosen.host, port=chosen.port)
        request.headers["Host"] = f"{chosen.host}:{chosen.port}"
        return await super().handle_async_request(request)


@pytest.fixture
def replicas(postgres: PostgresServer, tmp_path: Path) -> Iterator[tuple[Installation, Installation]]:
    shared = {"database": postgres.migrated(), "storage": str(tmp_path / "storage"), "poll_s": 0.05}
    homes = (tmp_path / "first", tmp_path / "second")
    for home in homes:
        home.mkdir(mode=0o700)
    one, other = (load_settings({**shared, "home": home, "leader_lease_s": LEADER_LEASE_S}, {}) for home in homes)
    with Installation(one) as first, Installation(other, beside=first) as second:
        yield first, second


@pytest.fixture
async def load(replicas: tuple[Installation, Installation]) -> AsyncIterator[Load]:
    rng = random.Random(SEED)
    for replica in replicas:
        wait_for("the API", partial(is_tended_ready, replica), told=replica.told)
    # Whoever was first made the token of both.
    (file,) = (found for replica in replicas if (found := token_file(replica.settings.home)).exists())
    token = file.read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    transport = Balanced([replica.url for replica in replicas], rng)
    async with httpx2.AsyncClient(base_url="http://balanced", headers=headers, transport=transport) as client:
        yield Load(client, rng, noted_spec, most_jobs=50)


def is_tended_ready(replica: Installation) -> bool:
    """Whether it answers. On a machine that stands still a leader loses its short lease, and ends, at any time."""
    replica.tend()
    try:
        return httpx2.get(f"{replica.url}/readyz", trust_env=False).status_code == 200
    except httpx2.TransportError:
        return False


async def test_kills_of_either_and_successions_under_mixed_load_lose_nothing_and_leave_nothing(
    replicas: tuple[Installation, Installation], load: Load
) -> None:
    rng = random.Random(SEED)
    async with load.running():
        for number in range(NUM_KILLS):
            await asyncio.sleep(rng.uniform(0.05, 0.8))
            for name in rng.choice(((API,), (RECONCILER,), (API, RECONCILER))):
                rng.choice(replicas).kill(name)
            tend(replicas)
            if number % (NUM_KILLS // NUM_SUCCESSIONS) == 0:
                await succeed(replicas)
        await until(lambda: len(load.accepted) > NUM_KILLS // 2, "so many accepted jobs")
    await judged(load, *replicas)


async def test_a_postgres_that_is_restarted_under_both_loses_nothing_and_both_go_on(
    replicas: tuple[Installation, Installation], load: Load, postgres: PostgresServer
) -> None:
    rng = random.Random(SEED)
    apis = [replica.pid(API) for replica in replicas]
    load.most_jobs = 2 * NUM_RESTARTS
    async with load.running():
        for _ in range(NUM_RESTARTS):
            await asyncio.sleep(rng.uniform(0.3, 1.5))
            await asyncio.to_thread(postgres.restart)
            for replica in replicas:
                await until(partial(is_tended_ready, replica), "an API that can use the database again")
            tend(replicas)  # a leader whose lease ran out meanwhile may have been succeeded
        await until(lambda: len(load.accepted) == load.most_jobs, "the last job to be accepted")
    assert [replica.pid(API) for replica in replicas if replica.is_alive(API)] == apis
    await judged(load, *replicas)
    assert load.answers["503"] > 0, "the database was never missed"
    assert load.answers["broken"] == 0, "a call was not answered"


def tend(replicas: Sequence[Installation]) -> None:
    for replica in replicas:
        replica.tend()


async def succeed(replicas: Sequence[Installation]) -> None:
    """Stop whichever reconciler leads, wherever it is, until the other one does; it leaves once it wakes."""
    first, known, stopped = await until(lambda: stopped_leader(replicas), "a leader")
    await until(lambda: tended_leader(replicas) not in (None, first), "another leader")
    assert fence(first) > known
    first.thaw(stopped)
    await until(lambda: not stopped.is_alive(), "the end of the one that woke")
    assert stopped.exitcode == Exit.FENCED_OUT
    tend(replicas)


def stopped_leader(replicas: Sequence[Installation]) -> tuple[Installation, int, ForkServerProcess] | None:
    """Who led, a fencing number no newer than its own, and its process, which stands still; None where nobody leads."""
    known, found = fence(replicas[0]), tended_leader(replicas)
    if found is None:
        return None
    try:
        return found, known, found.freeze(RECONCILER)
    except ProcessLookupError:  # it has lost its lease in this moment, and is gone
        return None


def tended_leader(replicas: Sequence[Installation]) -> Installation | None:
    """As ``leader``, where one that lost its short lease may come again."""
    tend(replicas)
    return leader(replicas)


def leader(replicas: Sequence[Installation]) -> Installation | None:
    """Whose reconciler of now has told that it leads with the newest fencing number."""
    newest = fence(replicas[0])
    return next((replica for replica in replicas if (newest, replica.pid(RECONCILER)) in led(replica)), None)


def led(replica: Installation) -> set[tuple[int, int]]:
    """Fencing number and process of each time that it came to lead."""
    lines = (json.loads(line) for line in replica.log(RECONCILER).splitlines() if line.startswith("{"))
    return {(line["fence"], line["process"]) for line in lines if line["event"] == "leading"}
