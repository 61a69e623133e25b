"""The API dies before and after every write of jobs; its caller says the same again, as a careful program does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest

from service.folders import token_file
from service.settings import Settings
from service.store.bundles import BundleStore
from service.store.jobs import JobStore
from tests.faults.crash_points import CrashPoint, When, methods_of
from tests.faults.diary import read_diary
from tests.faults.evidence import gather
from tests.faults.findings import Finding, assert_nothing_found, at_rest
from tests.faults.noted import noted_spec
from tests.faults.oracle import Case, judge
from tests.faults.processes import API, CLUSTER, RECONCILER, Installation
from tests.service.given import zip_bytes
from tests.waiting import LIMIT_S, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

READS = {
    "check_references",
    "job",
    "owner",
    "page",
    "count_by_state",
    "queue_before",
    "events",
    "bundle",
    "bundle_keys",
}
SWEEPS = {"forget_bundles"}  # the reconciler's


@dataclass
class Caller:
    """Says everything until it is answered, and starts the API again where it has died."""

    installation: Installation
    client: httpx2.AsyncClient
    accepted: dict[str, str] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    num_deaths: int = 0

    async def say(self, method: str, path: str, **request: Any) -> httpx2.Response:
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            try:
                return await self.client.request(method, f"/api/v1{path}", timeout=5.0, **request)
            except httpx2.TransportError:
                assert time.monotonic() < deadline_s, self.installation.log(API)[-3000:]
                self.num_deaths += len(self.installation.tend())
                await asyncio.sleep(0.01)

    async def submit(self, number: int, **changes: Any) -> str:
        key = f"key-{number}"
        answer = await self.say("POST", "/jobs", json=noted_spec(number) | changes, headers={"Idempotency-Key": key})
        assert answer.status_code in (200, 201), answer.text
        self.accepted[key] = str(answer.json()["id"])
        return self.accepted[key]

    async def until(self, job_id: str, *states: str) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while (seen := (await self.say("GET", f"/jobs/{job_id}")).json()["state"]) not in states:
            assert time.monotonic() < deadline_s, f"{seen}, not {states}"
            await asyncio.sleep(0.02)


@pytest.fixture
async def caller(settings: Settings) -> AsyncIterator[Caller]:
    with Installation(settings, names=(CLUSTER, RECONCILER, API)) as installation:
        token = token_file(settings.home)
        wait_for("the API's token", token.exists)
        headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
        async with httpx2.AsyncClient(base_url=installation.url, headers=headers, trust_env=False) as client:
            yield Caller(installation, client)


async def submit(caller: Caller, _: str) -> None:
    await caller.submit(2)


async def pause_and_resume(caller: Caller, job_id: str) -> None:
    assert (await caller.say("POST", f"/jobs/{job_id}/pause")).status_code == 200
    await caller.until(job_id, "PAUSED")
    assert (await caller.say("POST", f"/jobs/{job_id}/resume")).status_code == 200


async def scale(caller: Caller, job_id: str) -> None:
    assert (await caller.say("PUT", f"/jobs/{job_id}/scale", json={"workers": 2})).status_code == 200


async def delete(caller: Caller, job_id: str) -> None:
    await caller.say("POST", f"/jobs/{job_id}/cancel")
    await caller.until(job_id, "CANCELLED")
    assert (await caller.say("DELETE", f"/jobs/{job_id}")).status_code in (204, 404)
    caller.deleted.add(job_id)


ACTS: dict[str, Callable[[Caller, str], Awaitable[None]]] = {
    "submit": submit,
    "command": pause_and_resume,
    "set_scale": scale,
    "delete": delete,
}


async def upload(caller: Caller, body: bytes) -> httpx2.Response:
    return await caller.say("POST", "/bundles", content=body, headers={"Content-Type": "application/zip"})


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("method", sorted(set(methods_of(BundleStore)) - READS - SWEEPS))
async def test_an_api_that_dies_at_a_bundle_is_sent_it_again_and_nothing_is_left(
    caller: Caller, method: str, when: When
) -> None:
    # Packed once: a zip tells the time.
    known, new = (zip_bytes({"train.py": f"NUMBER = {number}"}) for number in (1, 2))
    assert (await upload(caller, known)).status_code == 201
    caller.installation.kill(API)
    caller.installation.start(API, CrashPoint(method=method, when=when, part="bundles"))
    sent = [(await upload(caller, body)).status_code for body in (known, new)]
    assert caller.num_deaths == 1, "the crash point was not reached"
    assert sent in ([200, 201], [200, 200])
    assert_nothing_found(judge(Case(evidence=gather(caller.installation.settings))))


def test_every_write_of_jobs_is_a_crash_point() -> None:
    assert set(methods_of(JobStore)) - READS == set(ACTS)


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("method", ACTS)
async def test_an_api_that_dies_at_a_write_is_told_again_and_nothing_is_lost(
    caller: Caller, method: str, when: When
) -> None:
    # One to act on, which does not end by itself, and one that must not be touched by it.
    job_id, other = await caller.submit(0, steps=100_000, workers={"min": 1, "max": 2}), await caller.submit(1)
    caller.installation.kill(API)
    caller.installation.start(API, CrashPoint(method=method, when=when))
    await ACTS[method](caller, job_id)
    assert caller.num_deaths == 1, "the crash point was not reached"
    await caller.until(other, "SUCCEEDED")
    if job_id not in caller.deleted:
        await caller.say("POST", f"/jobs/{job_id}/cancel")
    for known in set(caller.accepted.values()) - caller.deleted:
        await caller.until(known, "SUCCEEDED", "CANCELLED")
    # Files of a deleted job go, whoever died in between.
    assert_nothing_found(await at_rest(lambda: found(caller), LIMIT_S))


async def found(caller: Caller) -> list[Finding]:
    return judge(
        Case(
            evidence=gather(caller.installation.settings),
            notes=read_diary(caller.installation.diary),
            accepted=caller.accepted,
            deleted=caller.deleted,
            remains=await caller.installation.cluster.remains(),
        )
    )
