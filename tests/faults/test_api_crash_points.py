"""The API dies before and after every write of jobs; its caller says the same again, as a careful program does."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import fields

import httpx2
import pytest

from service.store.bundles import BundleStore
from service.store.jobs import JobStore
from service.store.opening import Store
from service.store.telemetry import TelemetryStore
from tests.faults.caller import Caller, caller, in_state
from tests.faults.crash_points import When, methods_of
from tests.faults.databases import each_method
from tests.service.given import zip_bytes

__all__ = ["caller"]

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

READS = {
    *("check_references", "job", "owner", "has_saved", "page"),
    *("count_by_state", "num_unended", "queue_before", "events", "bundle"),
}
WRITTEN = {"jobs", "bundles", "schedules", "sweeps", "configurations", "nodes", "access"}
RECONCILERS = {"database", "leases", "observed", "reconciler"}
"""Its calls are crash points of its own."""


async def submit(caller: Caller, _: str) -> None:
    await caller.submit(2)


async def pause_and_resume(caller: Caller, job_id: str) -> None:
    await caller.do(f"/jobs/{job_id}/pause")
    await caller.until(f"/jobs/{job_id}", in_state("PAUSED"))
    await caller.do(f"/jobs/{job_id}/resume")


async def scale(caller: Caller, job_id: str) -> None:
    assert (await caller.say("PUT", f"/jobs/{job_id}/scale", json={"workers": 2})).status_code == 200


async def delete(caller: Caller, job_id: str) -> None:
    await caller.do(f"/jobs/{job_id}/cancel")
    await caller.until(f"/jobs/{job_id}", in_state("CANCELLED"))
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
@pytest.mark.parametrize("method", sorted(set(methods_of(BundleStore)) - READS))
async def test_an_api_that_dies_at_a_bundle_is_sent_it_again_and_nothing_is_left(
    caller: Caller, method: str, when: When
) -> None:
    # Packed once: a zip tells the time.
    known, new = (zip_bytes({"train.py": f"NUMBER = {number}"}) for number in (1, 2))
    assert (await upload(caller, known)).status_code == 201
    caller.arm("bundles", method, when)
    sent = [(await upload(caller, body)).status_code for body in (known, new)]
    assert sent in ([200, 201], [200, 200])
    await caller.judged()


def test_every_part_of_the_store_that_the_api_writes_has_crash_points() -> None:
    assert "write" not in inspect.getsource(TelemetryStore)
    assert {part.name for part in fields(Store)} == WRITTEN | RECONCILERS | {"telemetry"}


def test_every_write_of_jobs_is_a_crash_point() -> None:
    assert set(methods_of(JobStore)) - READS == set(ACTS)


@pytest.mark.parametrize("when", When)
@each_method(ACTS, "submit", "delete")
async def test_an_api_that_dies_at_a_write_is_told_again_and_nothing_is_lost(
    caller: Caller, method: str, when: When
) -> None:
    # One to act on, which does not end by itself, and one that must not be touched by it.
    job_id, other = await caller.submit(0, steps=100_000, workers={"min": 1, "max": 2}), await caller.submit(1)
    caller.arm("jobs", method, when)
    await ACTS[method](caller, job_id)
    await caller.until(f"/jobs/{other}", in_state("SUCCEEDED"))
    if job_id not in caller.deleted:
        await caller.say("POST", f"/jobs/{job_id}/cancel")
    for known in set(caller.accepted.values()) - caller.deleted:
        await caller.until(f"/jobs/{known}", in_state("SUCCEEDED", "CANCELLED"))
    await caller.judged()
