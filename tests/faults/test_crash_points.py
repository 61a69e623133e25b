"""The reconciler dies, or is failed, before and after every call of its ports; the API at every write of its own."""

from __future__ import annotations

import pytest
from sqlalchemy import make_url

from service.ports import ClusterLostError, ClusterPort
from service.settings import Settings
from service.store.port import DatabaseAwayError, ReconcilerStore
from tests.faults.crash_points import CrashPoint, When, methods_of
from tests.faults.databases import each_method
from tests.faults.processes import RECONCILER
from tests.faults.scene import Scene, scene
from tests.faults.stirs import STIRS, come_and_go

__all__ = ["scene"]

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

ON_BOTH = ("admit", "transition", "fold")
"""Calls that are tried on PostgreSQL in every run: guarded writes that move jobs."""

STORE, CLUSTER = methods_of(ReconcilerStore), methods_of(ClusterPort)
NEVER_CALLED = {
    "job": "the reconciler reads all live jobs at once",
}
ENDLESS = {"postgresql": "watch_wishes"}
"""Calls that return only when they are cancelled, by the kind of database."""

READS = {
    *("installation_id", "watch_wishes", "survey", "live_jobs", "job_ids", "deleted_jobs", "acknowledged"),
    *("checkpoints", "marked_storage", "bundle", "bundle_keys", "node_marks", "losses", "due_schedules"),
    *("live_sweeps", "sweep_view", "beginning", "promotion_view"),
}
WRITES = set(STORE) - READS - set(NEVER_CALLED)
METHODS = [name for name in (*STORE, *CLUSTER) if name not in NEVER_CALLED]
OFTEN = {
    "fold": 4,
    "direct": 4,
    "transition": 3,
    "observe_sweep": 4,
    "carry_out": 3,
    "ask_search": 3,
}
"""Calls that mean another thing each time: starting, running, ending."""


def is_endless_on(settings: Settings, method: str) -> bool:
    return ENDLESS.get(make_url(settings.database_url).get_backend_name()) == method


def test_every_call_of_both_ports_is_a_crash_point() -> None:
    assert set(STORE).isdisjoint(CLUSTER)
    assert set(METHODS) | set(NEVER_CALLED) == {*STORE, *CLUSTER}
    assert set(STIRS) <= set(METHODS)


@each_method(METHODS, *ON_BOTH)
async def test_a_reconciler_that_dies_at_a_call_is_succeeded_and_nothing_is_lost(scene: Scene, method: str) -> None:
    is_endless = is_endless_on(scene.installation.settings, method)
    for nth in range(1, OFTEN.get(method, 1) + 1):
        for when in (When.BEFORE,) if is_endless else When:
            point = CrashPoint(method=method, when=when, nth=nth, is_write=method in WRITES)
            scene.installation.start(RECONCILER, point)
            await STIRS.get(method, come_and_go)(scene)
            await scene.struck(point)
    await scene.judged()


@each_method(METHODS, *ON_BOTH)
async def test_a_call_that_fails_after_its_effect_is_made_good(scene: Scene, method: str) -> None:
    if is_endless_on(scene.installation.settings, method):
        pytest.skip(f"{method} returns only when it is cancelled")
    error = DatabaseAwayError("planted") if method in STORE else ClusterLostError("planted")
    scene.is_tending = True
    point = CrashPoint(method=method, when=When.AFTER, error=error, is_write=method in WRITES)
    scene.installation.start(RECONCILER, point)
    await STIRS.get(method, come_and_go)(scene)
    await scene.struck(point)
    await scene.judged()
