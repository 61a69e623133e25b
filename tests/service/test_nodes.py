"""Taking nodes out of use: a user's word, the service's own, and what jobs make of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import httpx2
import pytest

from service.avoidance import MAX_LOSSES
from service.machines import Fate
from service.records import ClusterView, Duty, JobRow, NodeMark, NodeView
from service.services import Services
from service.states import JobState
from service.store.opening import Store
from service.store.port import FencedOutError
from tests.service.given import Clock, leader, placed, snapshot
from tests.service.scene import Scene, last_key
from tests.service.test_api_jobs import assert_problem
from workers.plan import TimelineKind
from workers.status import TimelineRow

pytestmark = pytest.mark.anyio

NODES = "/api/v1/cluster/nodes"
MAX_EVENTS = 20


def node(node_id: str, name: str) -> NodeView:
    return NodeView(node_id=node_id, name=name, is_alive=True, total={"cpus": 4.0}, free={"cpus": 4.0})


def mark(node_id: str, duty: Duty = Duty.DRAINED) -> NodeMark:
    return NodeMark(node_id=node_id, duty=duty, actor="admin", reason="a new disk", since=1.0)


async def test_the_latest_word_on_a_node_stays(store: Store) -> None:
    await store.nodes.mark_node(mark("a"), "Node a is drained.")
    await store.nodes.mark_node(mark("b"), "Node b is drained.")
    await store.nodes.mark_node(mark("a", Duty.ACTIVE), "Node a may be used again.")
    assert await store.nodes.node_marks() == {"a": mark("a", Duty.ACTIVE), "b": mark("b")}
    told = [event.text for event in await store.nodes.cluster_events(2)]
    assert told == ["Node a may be used again.", "Node b is drained."]


async def test_a_word_on_a_machine_goes_with_it_unless_somebody_said_another(store: Store, clock: Clock) -> None:
    fence = await leader(store)
    words = {node_id: replace(mark(node_id), name=f"host-{node_id}") for node_id in "abc"}
    for word in words.values():
        await store.nodes.mark_node(word, "Drained.")
    later = replace(words["c"], since=2.0, duty=Duty.ACTIVE)
    fate = Fate(moved={i: replace(words[i], node_id=f"new-{i}") for i in "ac"}, dropped=[words["b"]])
    await store.nodes.mark_node(later, "Used again.")
    await store.reconciler.settle_marks(fate, fence)
    assert await store.nodes.node_marks() == {"new-a": replace(words["a"], node_id="new-a"), "c": later}
    told = [event.text for event in await store.nodes.cluster_events(2)]
    assert told == [
        "Node host-a has come back, and is drained as it was: a new disk.",
        "Node host-b is gone, and with it the word that it is drained: one that comes now is another.",
    ]
    clock.advance(100)
    await leader(store)
    with pytest.raises(FencedOutError):
        await store.reconciler.settle_marks(Fate(moved={}, dropped=[later]), fence)


async def test_only_the_leader_quarantines(store: Store, clock: Clock) -> None:
    fence = await leader(store)
    clock.advance(100)
    await leader(store)
    with pytest.raises(FencedOutError):
        await store.reconciler.quarantine(mark("a", Duty.QUARANTINED), "Node a is quarantined.", fence)
    assert await store.nodes.node_marks() == {}


async def test_a_note_is_told_once_and_old_events_go(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.store.nodes.MAX_EVENTS", MAX_EVENTS)
    fence = await leader(store)
    await store.reconciler.note_on_cluster("a", "It stays.", fence)
    await store.reconciler.note_on_cluster("a", "It stays.", fence)
    assert len(await store.nodes.cluster_events(10)) == 1
    for number in range(MAX_EVENTS + 5):
        await store.reconciler.note_on_cluster("a", f"Note {number}.", fence)
    found = await store.nodes.cluster_events(2 * MAX_EVENTS)
    assert len(found) == MAX_EVENTS
    assert found[0].text == f"Note {MAX_EVENTS + 4}."


def lost(
    time_s: float, *nodes: str, kind: TimelineKind = TimelineKind.WORKER_LOST, spared: Sequence[str] = ()
) -> TimelineRow:
    gone = [{"worker_id": f"1.{rank}", "rank": rank, "node_id": name} for rank, name in enumerate(nodes)]
    before = {"lost": gone, "spared": spared}
    return TimelineRow(key=f"{kind}{time_s}", kind=kind, time=time_s, step=1, actor="", reason="", before=before)


async def test_losses_are_told_once_a_row_and_node_whether_or_not_anybody_survived(store: Store) -> None:
    fence = await leader(store)
    job = await placed(store, fence)

    resize = TimelineRow(key="r", kind=TimelineKind.RESIZE, time=30.0, step=1, actor="", reason="")
    passed = TimelineRow(key="p", kind=TimelineKind.RESTORE, time=31.0, step=1, actor="", reason="")
    rows = (
        lost(10.0, "a"),
        lost(20.0, "a", "b", "a", spared=["b"]),
        lost(25.0, ""),
        lost(26.0, "a", spared=["a"]),
        lost(40.0, "b", kind=TimelineKind.RESTORE),
        lost(50.0, "b", kind=TimelineKind.START),
        resize,
        passed,
    )
    await store.reconciler.fold(snapshot(job, timeline=rows), fence)
    found = await store.reconciler.losses(15.0)
    assert {loss.job_id for loss in found} == {job.id}
    assert [(loss.node_id, loss.time, loss.spared_elsewhere) for loss in found] == [
        ("a", 20.0, True),
        ("b", 20.0, False),
        ("a", 26.0, False),
        ("b", 40.0, False),
        ("b", 50.0, False),
    ]


async def test_a_node_is_drained_and_used_again_by_id_prefix_or_name(
    client: httpx2.AsyncClient, services: Services
) -> None:
    fence = await leader(services.store)
    nodes = (node("aa11", "one"), node("aa22", "two"))
    await services.store.reconciler.put_cluster(ClusterView(is_up=True, nodes=nodes), fence)
    answer = await client.post(f"{NODES}/aa1/drain", json={"reason": "a new disk"})
    assert answer.status_code == 200
    first, second = answer.json()["nodes"]
    assert (first["duty"], first["duty_reason"], second["duty"]) == ("drained", "a new disk", "active")
    assert [event["text"] for event in answer.json()["events"]] == ["Node one is drained: a new disk."]
    assert (await client.post(f"{NODES}/one/drain")).json()["nodes"][0]["duty_reason"] == "a new disk"
    assert (await client.post(f"{NODES}/two/quarantine")).json()["nodes"][1]["duty"] == "quarantined"
    cluster = (await client.post(f"{NODES}/aa11/uncordon")).json()
    assert cluster["nodes"][0]["duty"] == "active"
    assert len(cluster["events"]) == 3
    assert {mark.name for mark in (await services.store.nodes.node_marks()).values()} == {"one", "two"}
    assert cluster == (await client.get("/api/v1/cluster")).json()


async def test_nobody_is_asked_to_make_room_on_a_node_that_takes_no_workers(
    client: httpx2.AsyncClient, services: Services
) -> None:
    fence = await leader(services.store)
    nodes = (node("aa11", "one"), node("aa22", "two"))
    await services.store.reconciler.put_cluster(ClusterView(is_up=True, nodes=nodes), fence)
    assert len(await services.overview.machines()) == 2
    await client.post(f"{NODES}/one/drain")
    assert [each.name for each in await services.overview.machines()] == ["two"]


async def test_a_word_that_says_something_new_is_taken(
    client: httpx2.AsyncClient, services: Services, clock: Clock
) -> None:
    fence = await leader(services.store)
    await services.store.reconciler.put_cluster(ClusterView(is_up=True, nodes=(node("aa11", "one"),)), fence)
    said = []
    for verb, reason in (("uncordon", ""), ("uncordon", ""), ("drain", ""), ("drain", "a bad disk"), ("drain", "")):
        clock.advance(1)
        assert (await client.post(f"{NODES}/one/{verb}", json={"reason": reason})).status_code == 200
        (word,) = (await services.store.nodes.node_marks()).values()
        said.append((word.since - services.nodes.clock(), word.duty, word.reason))
    assert said == [
        (0.0, Duty.ACTIVE, ""),
        (0.0, Duty.ACTIVE, ""),
        (0.0, Duty.DRAINED, ""),
        (0.0, Duty.DRAINED, "a bad disk"),
        (-1.0, Duty.DRAINED, "a bad disk"),
    ]
    quarantined = replace(word, duty=Duty.QUARANTINED, actor="service")
    await services.store.reconciler.quarantine(quarantined, "It is.", fence)
    answer = await client.post(f"{NODES}/one/quarantine")
    assert answer.json()["events"][0] | {"seq": 0, "time": ""} == {
        "seq": 0,
        "time": "",
        "node_id": "aa11",
        "actor": "admin",
        "text": "Node one is quarantined.",
    }


async def test_what_is_no_node_or_no_reason_is_refused(client: httpx2.AsyncClient, services: Services) -> None:
    assert_problem(await client.post(f"{NODES}/aa/drain"), 404, "NOT_FOUND")
    fence = await leader(services.store)
    nodes = (node("aa11", "one"), node("aa22", "two"))
    await services.store.reconciler.put_cluster(ClusterView(is_up=True, nodes=nodes), fence)
    assert_problem(await client.post(f"{NODES}/aa/drain"), 409, "CONFLICT")
    assert "'bb'" in assert_problem(await client.post(f"{NODES}/bb/uncordon"), 404, "NOT_FOUND")["detail"]
    for body in ("[]", "null", '{"why": "x"}', '{"reason": 1}', f'{{"reason": "{"x" * 501}"}}'):
        assert_problem(await client.post(f"{NODES}/one/drain", content=body), 422, "INVALID")
    assert await services.store.nodes.node_marks() == {}


def places(scene: Scene) -> set[str]:
    return {worker.node_id for worker in scene.cluster.workers[last_key(scene)].values()}


async def both_places(endless: Scene) -> JobRow:
    """A job with a worker on each of two machines."""
    endless.cluster.machines = ("a", "b")
    job = await endless.submit(workers={"min": 1, "max": 2})
    return await endless.until(job, lambda row: row.num_current == 2 and places(endless) == {"a", "b"})


async def test_workers_move_off_a_drained_node(endless: Scene) -> None:
    job = await both_places(endless)
    await endless.store.nodes.mark_node(mark("a"), "Node a is drained.")
    row = await endless.until(job, lambda row: row.num_current == 2 and places(endless) == {"b"})
    assert row.state is JobState.RUNNING
    await endless.look()
    moved = [entry for entry in await endless.store.telemetry.timeline(job.id, 0, 100) if entry.actor == "admin"]
    assert [(entry.kind, entry.reason) for entry in moved] == [("resize", "node a is drained: a new disk")]


async def test_workers_move_off_a_node_that_the_cluster_takes_away(endless: Scene) -> None:
    job = await both_places(endless)
    endless.cluster.leaving = {"b"}
    await endless.until(job, lambda row: row.num_current == 2 and places(endless) == {"a"})


async def test_a_drained_node_takes_no_new_job(endless: Scene) -> None:
    await endless.store.nodes.mark_node(mark("n"), "Node n is drained.")
    job = await endless.submit(workers=1)
    for _ in range(5):
        await endless.reconciler.tick()
    assert (await endless.job(job)).state is JobState.QUEUED
    await endless.store.nodes.mark_node(mark("n", Duty.ACTIVE), "Node n may be used again.")
    await endless.until_state(job, JobState.RUNNING)


async def test_a_node_that_loses_workers_again_and_again_is_quarantined_and_the_last_one_kept(
    endless: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.avoidance.INCIDENT_S", 0.0)
    job = await both_places(endless)

    async def lose_on(machine: str) -> None:
        fleet = endless.cluster.fleets[last_key(endless)]
        worker = next(i for i, w in fleet.workers.items() if w.node_id == machine)
        fleet.lose(worker, "killed")
        await endless.until(job, lambda row: worker not in str(row.observed) and row.num_current == 2)

    for _ in range(MAX_LOSSES):
        await lose_on("a")
    for _ in range(2000):
        await endless.reconciler.tick()
        if marks := await endless.store.nodes.node_marks():
            break
    assert [(m.node_id, m.duty, m.actor) for m in marks.values()] == [("a", Duty.QUARANTINED, "service")]
    await endless.until(job, lambda row: row.num_current == 2 and places(endless) == {"b"})
    for _ in range(MAX_LOSSES):
        await lose_on("b")
    for _ in range(2000):
        await endless.reconciler.tick()
        if "stays in use" in (text := (await endless.store.nodes.cluster_events(1))[0].text):
            break
    assert "there is no other to use" in text
    assert list(await endless.store.nodes.node_marks()) == ["a"]


async def test_a_node_that_kills_jobs_of_one_worker_is_quarantined(
    endless: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.avoidance.INCIDENT_S", 0.0)
    endless.cluster.machines = ("a", "b")
    job = await endless.submit(workers=1)

    async def lose() -> None:
        await endless.until(job, lambda row: row.num_current == 1 and row.state is JobState.RUNNING)
        fleet = endless.cluster.fleets[last_key(endless)]
        [worker] = [i for i, w in fleet.workers.items() if w.node_id == "a"]
        fleet.lose(worker, "killed")
        await endless.until(job, lambda row: worker not in str(row.observed))

    for _ in range(MAX_LOSSES):
        await lose()
    for _ in range(2000):
        await endless.reconciler.tick()
        if marks := await endless.store.nodes.node_marks():
            break
    assert [(m.node_id, m.duty, m.actor) for m in marks.values()] == [("a", Duty.QUARANTINED, "service")]
    kinds = {entry.kind for entry in await endless.store.telemetry.timeline(job.id, 0, 100)}
    assert TimelineKind.WORKER_LOST not in kinds


async def test_nobody_is_placed_on_a_drained_machine_that_starts_again_also_under_another_leader(
    endless: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless.cluster.machines, endless.cluster.names_of = ("a1", "b"), {"a1": "a", "a2": "a"}
    word = replace(mark("a1"), name="a")
    await endless.store.nodes.mark_node(word, "Node a is drained.")
    await endless.reconciler.tick()
    endless.cluster.machines = ("b",)
    monkeypatch.setattr("service.reconciler.reconciler.VIEW_S", 0.0)
    await endless.reconciler.tick()
    assert await endless.store.nodes.node_marks() == {"a1": word}
    await endless.restart()
    endless.cluster.machines = ("b", "a2")
    job = await endless.submit(workers={"min": 1, "max": 2})
    await endless.until(job, lambda row: row.num_current == 2)
    assert places(endless) == {"b"}
    assert await endless.store.nodes.node_marks() == {"a2": replace(word, node_id="a2")}


async def test_who_takes_over_heeds_the_word_on_a_node(endless: Scene) -> None:
    endless.cluster.machines = ("a", "b")
    for _ in range(MAX_LOSSES):
        job = await placed(endless.store, endless.fence)
        await endless.store.reconciler.fold(snapshot(job, timeline=[lost(time.time(), "a")]), endless.fence)
    active = replace(mark("a", Duty.ACTIVE), since=time.time())
    await endless.store.nodes.mark_node(active, "Node a may be used again.")
    await endless.reconciler.tick()
    assert await endless.store.nodes.node_marks() == {"a": active}


async def test_a_node_that_comes_later_takes_workers_once_it_sees_the_storage(
    endless: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.reconciler.sight.TRY_S", 0.0)
    monkeypatch.setattr("workers.advisors.scaling.REST_S", 0.0)
    endless.sees_storage()
    job = await endless.submit(workers={"min": 1, "max": 8})
    await endless.until(job, lambda row: row.num_current == 4)
    endless.cluster.machines, endless.cluster.blind = ("n", "late"), {"late"}
    for _ in range(20):
        await endless.reconciler.tick()
    assert places(endless) == {"n"}
    endless.cluster.blind = set()
    await endless.until(job, lambda row: row.num_current == 8 and places(endless) == {"n", "late"})


async def test_spares_wait_where_workers_may_come_and_go_with_the_service(scene: Scene) -> None:
    scene.cluster.machines = ("a", "b")
    await scene.store.nodes.mark_node(mark("a"), "Node a is drained.")
    await scene.reconciler.tick()
    assert scene.cluster.spares == {"b": 1}
    await scene.reconciler.end()
    assert scene.cluster.spares == {}
