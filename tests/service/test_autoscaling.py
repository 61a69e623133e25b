from __future__ import annotations

import pytest

from service.demand import SETTLE_S, Demand
from service.reconciler.telling import RETRY_S, Teller
from service.records import Autoscaling
from service.states import JobState, Verb
from tests.fakes import FakeCluster
from tests.service.scene import Scene

pytestmark = pytest.mark.anyio


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wanted is told at once, and withdrawn at once."""
    monkeypatch.setattr("service.demand.SETTLE_S", 0.0)
    monkeypatch.setattr("service.demand.LINGER_S", 0.0)
    monkeypatch.setattr("service.reconciler.reconciler.VIEW_S", 0.0)


async def ticks_until_told(scene: Scene, count: int) -> None:
    for _ in range(50):
        if len(scene.cluster.demands) >= count:
            return
        await scene.reconciler.tick()
    raise AssertionError(f"only told: {scene.cluster.demands}")


@pytest.mark.usefixtures("hasty")
async def test_a_job_that_does_not_fit_brings_a_node_starts_on_it_and_the_demand_is_withdrawn(endless: Scene) -> None:
    endless.cluster.autoscaling = Autoscaling(num_coming=1)
    job = await endless.submit(workers=6)
    await ticks_until_told(endless, 1)
    assert endless.cluster.demands == [({"cpus": 1.0},) * 6]
    await endless.reconciler.tick()
    row = await endless.job(job)
    assert row.state is JobState.QUEUED
    assert row.explanation is not None
    assert row.explanation.summary.startswith("It waits for nodes with room for 2 workers")
    assert row.explanation.details == ("1 node is being started.",)
    stored = await endless.store.telemetry.cluster()
    assert stored is not None
    assert stored.view.autoscaling == Autoscaling(num_coming=1, wanted_by=(job.id,))
    endless.cluster.machines = ("n", "m")
    await endless.until(job, lambda row: row.num_current == 6)
    await ticks_until_told(endless, 2)
    assert endless.cluster.demands[1:] == [()]
    await endless.reconciler.tick()
    assert [event.text for event in reversed(await endless.store.nodes.cluster_events(9))] == [
        "The autoscaler was asked for nodes for digits.",
        "Node m came.",
        "The autoscaler is asked for no more nodes.",
    ]


@pytest.mark.usefixtures("hasty")
async def test_a_running_job_for_which_more_pays_brings_a_node_and_grows_onto_it(
    endless: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant in ("workers.advisors.scaling.REST_S", "workers.control.sizing.ASK_S"):
        monkeypatch.setattr(constant, 0.0)
    endless.cluster.autoscaling = Autoscaling()
    job = await endless.submit(workers={"min": 1, "max": 6})
    await endless.until(job, lambda _: any(endless.cluster.demands))
    assert endless.cluster.demands[-1] == ({"cpus": 4.0}, {"cpus": 1.0}, {"cpus": 1.0})
    endless.cluster.machines = ("n", "m")
    await endless.until(job, lambda row: row.num_current == 6)


@pytest.mark.usefixtures("hasty")
async def test_without_an_autoscaler_nothing_is_told_and_nothing_else_changes(endless: Scene) -> None:
    job = await endless.submit(workers=6)
    for _ in range(3):
        await endless.reconciler.tick()
    assert endless.cluster.demands == []
    row = await endless.job(job)
    assert row.explanation is not None
    assert row.explanation.summary.startswith("It can never start on this cluster")


@pytest.mark.usefixtures("hasty")
async def test_at_the_end_the_demand_is_withdrawn(endless: Scene) -> None:
    endless.cluster.autoscaling = Autoscaling()
    await endless.submit(workers=6)
    await ticks_until_told(endless, 1)
    await endless.reconciler.end()
    assert endless.cluster.demands[-1] == ()


@pytest.mark.usefixtures("hasty")
async def test_a_cancelled_job_wants_no_node_any_more(endless: Scene) -> None:
    endless.cluster.autoscaling = Autoscaling()
    job = await endless.submit(workers=6)
    await ticks_until_told(endless, 1)
    await endless.say(job, Verb.CANCEL)
    await ticks_until_told(endless, 2)
    assert endless.cluster.demands[-1] == ()


async def test_what_a_predecessor_asked_for_stands_until_it_is_known_what_is_wanted() -> None:
    cluster = FakeCluster()
    idle, busy = Teller(cluster, 4), Teller(cluster, 4)
    wish = Demand(bundles=({"cpus": 1.0},), missing={"a": 1})
    await busy.tell(wish, Autoscaling(), 0.0)
    assert cluster.demands == []
    await busy.tell(wish, Autoscaling(), SETTLE_S)
    assert cluster.demands == [wish.bundles]
    await idle.tell(Demand(), Autoscaling(), 0.0)
    assert cluster.demands[-1] == ()


async def test_of_a_demand_that_is_refused_as_a_whole_half_is_asked_for_and_later_all_again() -> None:
    teller = Teller(FakeCluster(), 8)
    wish = Demand(bundles=({"cpus": 1.0},) * 4, missing={"a": 4})
    refused = Autoscaling(is_infeasible=True)
    for now_s in (0.0, SETTLE_S):
        await teller.tell(wish, Autoscaling(), now_s)
    await teller.tell(wish, refused, 10.0)
    await teller.tell(wish, refused, 11.0)
    assert teller.max_workers == 2
    await teller.tell(wish, Autoscaling(), 10.0 + RETRY_S)
    assert teller.max_workers == 8
