from __future__ import annotations

import pytest

from service.demand import SETTLE_S, Demand
from service.queue import Waiting
from service.reconciler.telling import ANSWER_S, Teller
from service.records import Autoscaling
from service.refusals import RETRY_S
from service.room import Need
from service.states import JobState, Verb
from tests.fakes import FakeCluster
from tests.service.scene import Scene

pytestmark = pytest.mark.anyio

REFUSED = Autoscaling(is_infeasible=True)
HUGE = Waiting(job_id="huge", need=Need({"cpus": 1000.0}), min=1, max=1)
SMALL = Waiting(job_id="small", need=Need({"cpus": 1.0}), min=1, max=1)


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
    await say(teller, wish)
    await teller.tell(wish, REFUSED, 10.0)
    await teller.tell(wish, REFUSED, 11.0)
    assert teller.bounds.now == 2
    assert teller.is_declined(11.0)
    await teller.tell(wish, Autoscaling(), 10.0 + RETRY_S)
    assert teller.bounds.now == 8


async def test_a_waiting_job_that_was_refused_alone_is_put_off_and_those_that_train_may_ask() -> None:
    teller = Teller(FakeCluster(), 8)
    await say(teller, wish_of(HUGE))
    await teller.tell(wish_of(HUGE), REFUSED, 10.0)
    assert teller.refused([HUGE, SMALL], 11.0) == {"huge": False}
    assert teller.refused([HUGE], 10.0 + RETRY_S) == {"huge": True}
    assert not teller.is_declined(11.0)
    assert teller.bounds.now == 8


async def test_of_several_waiting_jobs_the_hopeless_one_is_found() -> None:
    teller = Teller(FakeCluster(), 8)
    await say(teller, wish_of(HUGE, SMALL))
    await teller.tell(wish_of(HUGE, SMALL), REFUSED, 10.0)
    assert teller.refused([HUGE, SMALL], 11.0) == {}
    assert teller.bounds.now == 1
    await teller.tell(wish_of(HUGE), REFUSED, 11.0)
    await teller.tell(wish_of(HUGE), REFUSED, 20.0)
    assert teller.refused([HUGE, SMALL], 21.0) == {"huge": False}
    assert teller.bounds.now == 8


async def test_an_answer_to_what_was_said_before_is_none_to_what_was_said_last() -> None:
    teller = Teller(FakeCluster(), 8)
    await say(teller, wish_of(SMALL))
    await teller.tell(wish_of(SMALL), Autoscaling(is_infeasible=True, refused=wish_of(HUGE).bundles), 10.0)
    assert teller.refused([SMALL], 11.0) == {}
    await teller.tell(wish_of(SMALL), Autoscaling(is_infeasible=True, refused=({"cpus": 1.0},)), 12.0)
    assert teller.refused([SMALL], 13.0) == {"small": False}


async def test_a_job_for_which_nodes_come_after_all_was_not_refused_any_more() -> None:
    teller = Teller(FakeCluster(), 8)
    await say(teller, wish_of(HUGE))
    await teller.tell(wish_of(HUGE), REFUSED, 10.0)
    for now_s in (11.0, ANSWER_S):
        await teller.tell(wish_of(HUGE), Autoscaling(num_coming=1), now_s)
        assert teller.refused([HUGE], now_s)
    await teller.tell(wish_of(HUGE), Autoscaling(num_coming=1), SETTLE_S + ANSWER_S)
    assert teller.refused([HUGE], 50.0) == {}


@pytest.mark.usefixtures("hasty")
async def test_a_hopeless_job_keeps_no_node_from_an_elastic_one_and_is_told_why(
    endless: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant in ("workers.advisors.scaling.REST_S", "workers.control.sizing.ASK_S"):
        monkeypatch.setattr(constant, 0.0)
    endless.cluster.autoscaling = Autoscaling()
    huge = await endless.submit(name="huge", workers=1, resources={"cpus": 1000})
    await ticks_until_told(endless, 1)
    assert {"cpus": 1000.0} in endless.cluster.demands[-1]
    endless.cluster.autoscaling = Autoscaling(is_infeasible=True, refused=endless.cluster.demands[-1])
    for _ in range(3):
        await endless.reconciler.tick()
    endless.cluster.autoscaling = Autoscaling()
    job = await endless.submit(workers={"min": 1, "max": 6})
    await endless.until(job, lambda _: endless.cluster.demands[-1] == ({"cpus": 4.0}, {"cpus": 1.0}, {"cpus": 1.0}))
    row = await endless.job(huge)
    assert row.explanation is not None
    assert "can never start" in row.explanation.summary
    assert "no kind of node" in row.explanation.details[0]
    endless.cluster.machines = ("n", "m")
    await endless.until(job, lambda row: row.num_current == 6)


@pytest.mark.usefixtures("hasty")
async def test_a_job_that_lacks_more_workers_than_may_be_asked_for_is_told_the_setting(endless: Scene) -> None:
    endless.cluster.autoscaling = Autoscaling()
    job = await endless.submit(workers=9, batch={"global_size": 32})
    for _ in range(3):
        await endless.reconciler.tick()
    assert not any(endless.cluster.demands)
    row = await endless.job(job)
    assert row.explanation is not None
    assert "room for 5 workers more" in row.explanation.summary
    assert "`max_demand_workers` = 4" in row.explanation.summary


async def say(teller: Teller, wish: Demand) -> None:
    """It is in force, and was said ``SETTLE_S`` after 0."""
    for now_s in (0.0, SETTLE_S):
        await teller.tell(wish, Autoscaling(), now_s)


def wish_of(*jobs: Waiting) -> Demand:
    return Demand(
        bundles=tuple(job.need.usual for job in jobs for _ in range(job.min)),
        missing={job.job_id: job.min for job in jobs},
        waiting=jobs,
    )
