"""The service's processes are killed at random moments under mixed load, over a cluster that goes on meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest

from service.folders import token_file
from service.reconciler.process import Exit
from service.settings import Settings
from tests.faults.load import Load
from tests.faults.noted import noted_spec
from tests.faults.processes import API, RECONCILER, Installation
from tests.faults.settling import fence, judged, stopped_between_transactions, until
from tests.waiting import wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

NUM_KILLS, NUM_JOBS = 50, 40
SEED = 20


@pytest.fixture
def installation(settings: Settings) -> Iterator[Installation]:
    with Installation(settings) as made:
        yield made


@pytest.fixture
async def load(installation: Installation) -> AsyncIterator[Load]:
    token = token_file(installation.settings.home)
    wait_for("the API's token", token.exists)
    headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
    async with httpx2.AsyncClient(base_url=installation.url, headers=headers, trust_env=False) as client:
        yield Load(client, random.Random(SEED), noted_spec, most_jobs=60)


@pytest.mark.timeout(400)
async def test_fifty_kills_under_mixed_load_lose_nothing_and_leave_nothing(
    installation: Installation, load: Load
) -> None:
    rng = random.Random(SEED)
    async with load.running():
        num_kills = 0
        while num_kills < NUM_KILLS or len(load.accepted) < NUM_JOBS:
            num_kills += 1
            await asyncio.sleep(rng.uniform(0.05, 0.8))
            for name in rng.choice(((API,), (RECONCILER,), (RECONCILER,), (API, RECONCILER))):
                installation.kill(name)
            installation.tend()
    await judged(load, installation)


async def test_a_reconciler_that_was_stopped_and_wakes_after_another_took_over_does_no_harm(
    installation: Installation, load: Load
) -> None:
    async with load.running():
        for _ in range(3):
            await until(lambda: installation.diary.stat().st_size, "some job's steps")
            stopped = await stopped_between_transactions(installation)
            known = fence(installation)
            installation.start(RECONCILER)
            await until(lambda known=known: fence(installation) > known, "the second one's lease")
            installation.thaw(stopped)
            await until(lambda stopped=stopped: not stopped.is_alive(), "the end of the first one")
            assert stopped.exitcode == Exit.FENCED_OUT
    await judged(load, installation)
