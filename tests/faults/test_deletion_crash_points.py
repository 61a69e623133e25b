"""A deletion is several commits: whoever dies between two of them leaves no half of a job."""

from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy import insert

from service.settings import Settings
from service.states import JobState
from service.store.deleting import ROWS_A_PART
from service.store.opening import open_store
from service.store.schema import log_chunks
from tests.faults.caller import Caller, caller, in_state
from tests.faults.crash_points import CrashPoint, When
from tests.faults.processes import RECONCILER
from tests.faults.scene import Scene, scene
from tests.faults.settling import stopped_between_transactions
from tests.faults.stirs import begin_to_delete

__all__ = ["caller", "scene"]

pytestmark = [pytest.mark.anyio, pytest.mark.faults]


async def write_a_long_log(settings: Settings, job_id: str) -> None:
    """So many rows that they go in two parts."""
    row = {"job_id": job_id, "attempt": 1, "worker_id": "1.0", "size_bytes": 0, "time": 0.0, "changed": 0, "data": b""}
    rows = [row | {"offset": n, "position": n} for n in range(-2 * ROWS_A_PART - 1, 0)]
    store = open_store(settings.database_url)
    await store.database.write(lambda write: write.conn.execute(insert(log_chunks), rows))
    await store.close()


@pytest.mark.parametrize("commit", [1, 2, 3])
async def test_an_api_that_dies_in_a_deletion_is_told_again_and_nothing_is_left(caller: Caller, commit: int) -> None:
    """After the note of it, and after parts of the rows."""
    job_id = await caller.submit(0, steps=40)
    await caller.until(f"/jobs/{job_id}", in_state("SUCCEEDED"))
    await write_a_long_log(caller.installation.settings, job_id)
    caller.arm("jobs", "delete", When.AFTER, commit)
    leader = await stopped_between_transactions(caller.installation)  # it would finish the deletion meanwhile
    assert (await caller.say("DELETE", f"/jobs/{job_id}")).status_code in (204, 404)
    caller.installation.thaw(leader)
    caller.deleted.add(job_id)
    await caller.judged()


@pytest.mark.parametrize("commit", [1, 2])
async def test_a_reconciler_that_dies_while_it_finishes_one_is_succeeded(scene: Scene, commit: int) -> None:
    point = CrashPoint(method="finish_deletions", when=When.AFTER, commit=commit)
    scene.installation.start(RECONCILER, point)
    job_id = await scene.submit(steps=40)
    await scene.until("its end", partial(scene.is_in, job_id, JobState.SUCCEEDED))
    await write_a_long_log(scene.installation.settings, job_id)
    await begin_to_delete(scene, await scene.services.jobs.get(job_id))
    await scene.struck(point)
    await scene.judged()
