"""What ``explain`` says of a job that lives: how old the news is, and what it does not tell as it was asked to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import httpx2
import pytest

from service.records import ClusterView, JobRow, NodeView, Transition
from service.services import Services
from service.states import JobState
from service.words import duration
from tests.service.given import Clock, leader, placed, plan, record, snapshot, spec, view
from workers.errors import Reason
from workers.plan import Exchange, TimelineKind
from workers.status import Phase, TimelineRow

pytestmark = pytest.mark.anyio


@pytest.fixture
async def fence(services: Services, client: httpx2.AsyncClient) -> int:
    return await leader(services.store)


@pytest.fixture
async def job(services: Services, fence: int) -> JobRow:
    return await placed(services.store, fence)


def path_of(job: JobRow, what: str) -> str:
    return f"/api/v1/jobs/{job.id}/{what}"


async def test_a_running_job_that_nobody_has_looked_at_for_minutes_says_so_with_the_age(
    client: httpx2.AsyncClient, services: Services, job: JobRow, fence: int, clock: Clock
) -> None:
    running = await services.store.reconciler.transition(job, JobState.RUNNING, Transition(), fence)
    await services.store.reconciler.fold(snapshot(running), fence)
    roomy = NodeView(node_id="n", name="n", is_alive=True, total={"cpus": 2.0}, free={"cpus": 1.0})
    await services.store.reconciler.put_cluster(ClusterView(is_up=True, nodes=(roomy,)), fence)
    await client.put(path_of(job, "scale"), json={"workers": 3})
    fresh = (await client.get(path_of(job, "explain"))).json()
    assert "old" not in " ".join(fresh["details"])
    clock.advance(303)
    found = (await client.get(path_of(job, "explain"))).json()
    assert found["summary"] == fresh["summary"]
    assert found["details"] == [
        "What is told here may be old: nobody has looked at the cluster for 5 min 3 s; "
        "the service's reconciler is away."
    ]
    await client.post(path_of(job, "pause"))
    assert "reconciler.log" in (await client.get(path_of(job, "explain"))).json()["remedy"]


async def test_a_job_behind_a_silent_link_is_not_said_to_stand_still(
    client: httpx2.AsyncClient, services: Services, job: JobRow, fence: int
) -> None:
    running = await services.store.reconciler.transition(job, JobState.RUNNING, Transition(), fence)
    await services.store.reconciler.fold(snapshot(running), fence)
    lost = Transition(reason=Reason.CLUSTER_LOST)
    await services.store.reconciler.transition(running, JobState.RECOVERING, lost, fence)
    await services.store.reconciler.put_cluster(ClusterView(is_up=False, error="it is silent"), fence)
    found = (await client.get(path_of(job, "explain"))).json()
    assert "nobody sees whether the workers of the job still train" in found["summary"]
    assert "When it was last seen, 1 worker trained." in found["details"]
    assert "taken over" in found["remedy"]


async def test_what_a_job_does_not_tell_as_it_was_asked_to_is_explained(
    client: httpx2.AsyncClient, services: Services, job: JobRow, fence: int
) -> None:
    lacks = "checkpoint.metric='user.magrin' was not reported until step 100"
    cut = TimelineRow(
        key="limit/metric", kind=TimelineKind.LIMIT, time=1.0, step=100, actor="service", reason=lacks, cost_s=0.0
    )
    running = await services.store.reconciler.transition(job, JobState.RUNNING, Transition(), fence)
    await services.store.reconciler.fold(snapshot(running, timeline=(cut,)), fence)
    assert (await client.get(path_of(job, "explain"))).json()["details"][-1] == lacks


async def test_a_job_that_waits_is_told_its_earliest_start_by_what_those_who_train_have_left(
    client: httpx2.AsyncClient, services: Services, job: JobRow, fence: int
) -> None:
    full = NodeView(node_id="n1", name="n1", is_alive=True, total={"cpus": 1.0}, free={"cpus": 0.0})
    await services.store.reconciler.put_cluster(ClusterView(is_up=True, nodes=(full,)), fence)
    waits = (await services.store.jobs.submit(spec())).job
    running = await services.store.reconciler.transition(job, JobState.RUNNING, Transition(), fence)

    async def told() -> str:
        return str((await client.get(path_of(waits, "explain"))).json()["details"][-1])

    assert await told() == "Earliest start: unknown, as jobs that have the room do not tell yet when they end."
    for upto in (10, 20):
        records = [record(n, samples_per_s=8.0) for n in range(upto - 9, upto + 1)]
        await services.store.reconciler.fold(snapshot(running, records), fence)
    (trains,) = [row for row in await services.store.reconciler.live_jobs() if row.id == job.id]
    assert trains.total_samples is not None
    assert trains.samples_per_s
    left_s = (trains.total_samples - trains.samples) / trains.samples_per_s
    assert (await told()).startswith(f"Earliest start: in about {duration(left_s)}, when jobs that train now")


async def test_no_earliest_start_is_told_where_not_all_who_have_room_are_looked_at(
    client: httpx2.AsyncClient, services: Services, job: JobRow, fence: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = NodeView(node_id="n1", name="n1", is_alive=True, total={"cpus": 1.0}, free={"cpus": 0.0})
    await services.store.reconciler.put_cluster(ClusterView(is_up=True, nodes=(full,)), fence)
    await placed(services.store, fence)
    waits = (await services.store.jobs.submit(spec())).job

    async def is_told() -> bool:
        details = (await client.get(path_of(waits, "explain"))).json()["details"]
        return any(detail.startswith("Earliest start") for detail in details)

    assert await is_told()
    monkeypatch.setattr("service.store.list_parts.MAX_PAGE_BYTES", 1)
    assert not await is_told()


async def test_a_sample_that_takes_long_to_read_is_named_while_it_is_read(
    client: httpx2.AsyncClient, services: Services, job: JobRow, fence: int
) -> None:
    running = await services.store.reconciler.transition(job, JobState.RUNNING, Transition(), fence)
    reads = replace(view(), phase=Phase.DATA, phase_age_s=4.0, reading="train_data[37]")
    told = []
    for seen in (reads, replace(reads, phase_age_s=45.0), replace(view(), phase_age_s=45.0)):
        await services.store.reconciler.fold(snapshot(running, plan=plan(128), workers=(seen,)), fence)
        details = (await client.get(path_of(job, "explain"))).json()["details"]
        told.append([detail for detail in details if "reading" in detail])
    assert told == [
        [],
        [
            "Worker 1.0 has been reading train_data[37] for 45 s; it is ended where that takes longer than the setting "
            "data_s of the service."
        ],
        [],
    ]


@pytest.mark.parametrize(
    ("communication", "told"),
    [
        ("int8", "Gradients travel as int8, as asked for."),
        (
            {"scheme": "none", "options": {"bucket_mib": 4}},
            "Gradients travel as none in buckets of 4 MiB, as asked for.",
        ),
        ({"scheme": "int8", "dense_first": 2}, "Gradients travel as int8 after 2 dense, as asked for."),
        (
            {"scheme": "bf16", "options": {"across": "int4"}},
            "Gradients travel as bf16 across int4, as asked for.",
        ),
        (
            {"scheme": "local_steps", "options": {"steps": 7}, "loss_class": "lossy"},
            "Each worker takes 7 steps of its own, and then what they changed is exchanged as int4, as asked for.",
        ),
    ],
    ids=str,
)
async def test_how_gradients_travel_is_told_where_the_job_says_it_itself(
    client: httpx2.AsyncClient, services: Services, fence: int, communication: object, told: str
) -> None:
    job = await placed(services.store, fence, communication=communication)
    running = await services.store.reconciler.transition(job, JobState.RUNNING, Transition(), fence)
    await services.store.reconciler.fold(snapshot(running, plan=plan(128)), fence)
    assert told in (await client.get(path_of(job, "explain"))).json()["details"]


TOPK = "By topk the largest 1 % of gradients travel, their values as int8"


@pytest.mark.parametrize(
    ("communication", "told"),
    [
        ("topk", f"{TOPK}."),
        (
            {"scheme": "topk", "fraction": 0.015, "quantise": "none"},
            "By topk the largest 1.5 % of gradients travel, their values as they are.",
        ),
        (
            {"scheme": "topk", "momentum": 0.9, "warm_up": 100},
            f"{TOPK}, chosen once each worker has added momentum of 0.9; in the job's first 100 steps more of them "
            "do, from a quarter down to that.",
        ),
        (
            {"scheme": "topk", "across": "int4"},
            f"Inside a rack, b{TOPK[1:]}. Between racks sums travel as int4.",
        ),
        ("powersgd", "By powersgd each matrix travels as two thin factors of rank 4."),
        ({"scheme": "powersgd", "rank": 2}, "By powersgd each matrix travels as two thin factors of rank 2."),
        ("local_steps", "After steps of their own all workers take the mean of what they came to."),
        (
            {"scheme": "local_steps", "outer_lr": 0.7, "outer_momentum": 0.9},
            "After steps of their own all workers take one step by the mean of what they changed, with outer_lr 0.7 "
            "and outer_momentum 0.9.",
        ),
    ],
    ids=str,
)
async def test_what_a_scheme_does_by_its_options_is_told(
    client: httpx2.AsyncClient, services: Services, fence: int, communication: str | Mapping[str, object], told: str
) -> None:
    spelled = {"scheme": communication} if isinstance(communication, str) else communication
    job = await placed(services.store, fence, communication={**spelled, "loss_class": "lossy"})
    running = await services.store.reconciler.transition(job, JobState.RUNNING, Transition(), fence)
    await services.store.reconciler.fold(snapshot(running, plan=plan(128)), fence)
    assert told in (await client.get(path_of(job, "explain"))).json()["details"]


@pytest.mark.parametrize("reason", ["", "With powersgd steps are 4.4 times as fast."])
async def test_options_are_told_of_what_auto_chose(
    client: httpx2.AsyncClient, services: Services, job: JobRow, fence: int, reason: str
) -> None:
    running = await services.store.reconciler.transition(job, JobState.RUNNING, Transition(), fence)
    chosen = replace(plan(128), exchange=Exchange.named("powersgd", "auto: steps wait"))
    seen = snapshot(running, plan=chosen, workers=(view(), view("1.1", 1)), exchange_reason=reason)
    await services.store.reconciler.fold(seen, fence)
    details = (await client.get(path_of(job, "explain"))).json()["details"]
    assert "By powersgd each matrix travels as two thin factors of rank 4." in details


@pytest.mark.parametrize(
    ("num_workers", "reason", "told"),
    [
        (2, "", ["Gradients travel as int4 (auto: a step of 1.1 s waits 1 s for gradients)."]),
        (2, "With int4 steps are 4.4 times as fast.", ["With int4 steps are 4.4 times as fast."]),
        (1, "With int4 steps are 4.4 times as fast.", []),
    ],
)
async def test_how_gradients_travel_is_told_also_before_that_is_judged(
    client: httpx2.AsyncClient,
    services: Services,
    job: JobRow,
    fence: int,
    num_workers: int,
    reason: str,
    told: list[str],
) -> None:
    running = await services.store.reconciler.transition(job, JobState.RUNNING, Transition(), fence)
    on_trial = Exchange.named("int4", "auto: a step of 1.1 s waits 1 s for gradients")
    workers = (view(), view("1.1", 1))[:num_workers]
    seen = snapshot(running, plan=replace(plan(128), exchange=on_trial), workers=workers, exchange_reason=reason)
    await services.store.reconciler.fold(seen, fence)
    details = (await client.get(path_of(job, "explain"))).json()["details"]
    assert [detail for detail in details if "int4" in detail] == told


async def test_who_waits_for_gpus_or_cpus_instead_is_told_of_both(
    client: httpx2.AsyncClient, services: Services, fence: int
) -> None:
    nodes = (
        NodeView(node_id="g", name="g", is_alive=True, total={"cpus": 16.0, "gpus": 1.0}, free={"cpus": 16.0}),
        NodeView(node_id="c", name="c", is_alive=True, total={"cpus": 9.0}, free={"cpus": 5.0}),
    )
    await services.store.reconciler.put_cluster(ClusterView(is_up=True, nodes=nodes), fence)
    resources = {"gpus": 1, "cpus_instead": 4}
    job = (await services.store.jobs.submit(spec(workers=2, resources=resources))).job
    found = (await client.get(path_of(job, "explain"))).json()
    assert found["details"][0] == ("To start it needs 2 workers with 1 CPU, 1 GPU (on nodes without GPUs 4 CPU) each.")
    assert found["details"][1] == (
        "Free now: room for 1 worker, 16 CPU and 0 GPU on 1 node with GPUs, 5 CPU and 0 GPU on 1 node without GPUs."
    )
    [wanted] = (await client.get("/api/v1/cluster")).json()["demand"]
    assert (wanted["cpus"], wanted["gpus"], wanted["cpus_instead"]) == (2, 2, 8)


async def test_a_worker_that_does_not_come_is_said_to_wait_where_there_is_no_room(
    client: httpx2.AsyncClient, services: Services, fence: int
) -> None:
    job = await placed(services.store, fence, workers=2)
    running = await services.store.reconciler.transition(job, JobState.RUNNING, Transition(), fence)
    await services.store.reconciler.fold(snapshot(running, num_pending=1), fence)

    async def told(free: float) -> tuple[list[str], str | None]:
        only = NodeView(node_id="n", name="n", is_alive=True, total={"cpus": 2.0}, free={"cpus": free})
        await services.store.reconciler.put_cluster(ClusterView(is_up=True, nodes=(only,)), fence)
        found = (await client.get(path_of(job, "explain"))).json()
        return found["details"], found["remedy"]

    assert await told(1.0) == (["1 more is being started."], None)
    details, remedy = await told(0.0)
    assert details == ["1 more is being started, or waits for room.", "There is no room for more now."]
    assert remedy is not None
    assert remedy.startswith("It grows by itself when resources are free")


async def test_a_worker_that_has_its_place_is_told_with_what_it_does_until_it_trains(
    client: httpx2.AsyncClient, services: Services, fence: int
) -> None:
    job = await placed(services.store, fence, workers=2)
    running = await services.store.reconciler.transition(job, JobState.RUNNING, Transition(), fence)
    newcomer = replace(view("1.1", 1), rank=None, phase=Phase.BUILD, phase_age_s=12.0)
    full = NodeView(node_id="n", name="n", is_alive=True, total={"cpus": 2.0}, free={"cpus": 0.0})
    await services.store.reconciler.put_cluster(ClusterView(is_up=True, nodes=(full,)), fence)
    await services.store.reconciler.fold(snapshot(running, workers=(view(), newcomer)), fence)
    found = (await client.get(path_of(job, "explain"))).json()
    assert "Worker 1.1 has its place, and is being made ready (build for 12 s)." in found["details"]
    assert "There is no room for more now." not in found["details"]
    assert found["remedy"] is None
    waits = replace(newcomer, phase=Phase.READY)
    await services.store.reconciler.fold(snapshot(running, workers=(view(), waits)), fence)
    found = (await client.get(path_of(job, "explain"))).json()
    assert "Worker 1.1 is ready, and waits for the others to take it in." in found["details"]
    joining = (view(), replace(view("1.1", 1), phase=Phase.RENDEZVOUS))
    await services.store.reconciler.fold(snapshot(running, workers=joining, num_current=1), fence)
    found = (await client.get(path_of(job, "explain"))).json()
    assert not [detail for detail in found["details"] if "room" in detail or "Free now" in detail]


async def test_while_a_job_starts_it_is_told_what_its_workers_do(
    client: httpx2.AsyncClient, services: Services, fence: int
) -> None:
    job = await placed(services.store, fence)
    builds = replace(view(), rank=None, phase=Phase.BUILD, phase_age_s=3.0)
    await services.store.reconciler.fold(snapshot(job, workers=(builds,), plan=None), fence)
    found = (await client.get(path_of(job, "explain"))).json()
    assert found["details"] == [f"Worker {builds.worker_id} has its place, and is being made ready (build for 3 s)."]


async def test_room_on_a_node_that_takes_no_workers_is_none(
    client: httpx2.AsyncClient, services: Services, fence: int
) -> None:
    nodes = (
        NodeView(node_id="n", name="n", is_alive=True, total={"cpus": 2.0}, free={"cpus": 0.0}),
        NodeView(node_id="m", name="m", is_alive=True, total={"cpus": 8.0}, free={"cpus": 8.0}),
    )
    await services.store.reconciler.put_cluster(ClusterView(is_up=True, nodes=nodes), fence)
    await placed(services.store, fence)
    job = (await services.store.jobs.submit(spec(resources={"gpus": 1, "cpus_instead": 2}))).job
    await client.post("/api/v1/cluster/nodes/m/drain", json={"reason": "a new disk"})
    _, free, *more = (await client.get(path_of(job, "explain"))).json()["details"]
    assert free == "Free now: room for no worker, 0 CPU and 0 GPU on 1 node without GPUs."
    assert more[0] == "Not in use: node m is drained: a new disk."
    assert more[1].startswith("Earliest start: unknown")


async def test_a_job_that_fits_nowhere_is_not_told_to_wait_for_others_to_end(
    client: httpx2.AsyncClient, services: Services, fence: int
) -> None:
    small = NodeView(node_id="n", name="n", is_alive=True, total={"cpus": 2.0}, free={"cpus": 0.0})
    await services.store.reconciler.put_cluster(ClusterView(is_up=True, nodes=(small,)), fence)
    await placed(services.store, fence)
    job = (await services.store.jobs.submit(spec(resources={"gpus": 1, "cpus_instead": 3}))).job
    details = (await client.get(path_of(job, "explain"))).json()["details"]
    assert not [detail for detail in details if detail.startswith("Earliest start")]


async def test_a_job_that_waits_with_a_number_needs_its_least_to_start(
    client: httpx2.AsyncClient, services: Services, fence: int
) -> None:
    full = NodeView(node_id="n", name="n", is_alive=True, total={"cpus": 4.0}, free={"cpus": 1.0})
    await services.store.reconciler.put_cluster(ClusterView(is_up=True, nodes=(full,)), fence)
    job = (await services.store.jobs.submit(spec(workers={"min": 2, "max": 4}))).job
    await client.put(path_of(job, "scale"), json={"workers": 3})
    found = (await client.get(path_of(job, "explain"))).json()
    assert found["details"][0] == (
        "To start it needs 2 workers with 1 CPU each; the others of 3 come when there is room."
    )
    assert "lower `workers.min` (now 2)" in found["remedy"]
