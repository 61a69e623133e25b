"""What the service tells of a job's racks: on the job, in its explanation, on the cluster, on the pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx2
import pytest

from service.api.cluster_shapes import Cluster
from service.api.shapes import Job
from service.records import ClusterView, JobRow, NodeView, Transition
from service.services import Services
from service.states import JobState
from service.timeline_words import sentence
from tests.service.given import leader, placed, plan, record, snapshot, view
from workers.errors import Reason
from workers.plan import Exchange, Member
from workers.racks import Topology, topology_of, unmeasured

pytestmark = pytest.mark.anyio

API = "/api/v1"
NODES = tuple(
    NodeView(node_id=i, name=f"host-{i}", is_alive=True, total={"cpus": 1.0}, free={}, rack=rack)
    for i, rack in (("n1", "a"), ("n2", "b"), ("n3", "b"))
)
LABELS = ("a", "b", "b")
FAST, SLOW = 118e6, 6e6
LINKS = [[0.0, FAST, SLOW], [FAST, 0.0, SLOW], [SLOW, SLOW, 0.0]]
LATENCIES_S = [[0.0, 2e-4, 8e-4], [2e-4, 0.0, 9e-4], [8e-4, 9e-4, 0.0]]
CONTRADICTED = topology_of(LINKS, LATENCIES_S, LABELS)


@pytest.fixture
async def job(services: Services, client: httpx2.AsyncClient) -> JobRow:
    fence = await leader(services.store)
    await services.store.reconciler.put_cluster(ClusterView(is_up=True, nodes=NODES), fence)
    found = await placed(services.store, fence)
    return await services.store.reconciler.transition(found, JobState.RUNNING, Transition(), fence)


async def told(
    services: Services, job: JobRow, topology: Topology | None, travels: str = "none", records: tuple[Any, ...] = ()
) -> None:
    """A look of the reconciler at a job with a worker on each node."""
    exchange = Exchange.named(travels, "asked for in the spec")
    of_three = replace(
        plan(32), exchange=exchange, members=tuple(Member(worker_id=f"1.{n}", rank=n) for n in (2, 1, 0))
    )
    views = [replace(view(f"1.{n}", n, f"n{n + 1}"), rack_label=LABELS[n]) for n in (0, 1, 2)]
    seen = snapshot(
        job, records, workers=(*views[::-1], view("1.3", None)), plan=of_three, num_current=3, topology=topology
    )
    await services.store.reconciler.fold(seen, 1)


async def test_a_job_shows_its_racks_with_their_links_and_what_labels_tell_otherwise(
    client: httpx2.AsyncClient, services: Services, job: JobRow
) -> None:
    await told(services, job, CONTRADICTED)
    document = (await client.get(f"{API}/jobs/{job.id}")).json()
    Job.model_validate(document)
    racks = document["racks"]
    assert [(w["worker_id"], w["rank"], w["rack"], w["label"]) for w in racks["workers"]] == [
        ("1.0", 0, 0, "a"),
        ("1.1", 1, 0, "b"),
        ("1.2", 2, 1, "b"),
    ]
    assert (racks["found_by"], racks["inside"]) == ("links", {"bytes_per_s": FAST, "latency_s": 2e-4})
    assert racks["across"] == {"bytes_per_s": SLOW, "latency_s": pytest.approx(8.5e-4)}
    assert [(d["worker_ids"], d["node_ids"], d["is_one_label"]) for d in racks["disputes"]] == [
        (["1.0", "1.1"], ["n1", "n2"], False),
        (["1.1", "1.2"], ["n2", "n3"], True),
    ]
    explained = (await client.get(f"{API}/jobs/{job.id}/explain")).json()["details"]
    assert [line for line in explained if "racks" in line or "rack " in line] == [
        "Workers sit in 2 racks by what links carry: 944 Mbit/s and 0.2 ms inside, 48 Mbit/s and 0.85 ms between them.",
        *(f"Labels and links differ: {dispute['told']}." for dispute in racks["disputes"]),
    ]
    page = (await client.get(f"/jobs/{job.id}?tab=system")).text
    for shown in (">1 (a)<", ">1 (b)<", ">2 (b)<", racks["told"]):
        assert shown in page


@pytest.mark.parametrize(
    ("speed", "used", "loss", "why"),
    [
        (SLOW, "int4", "int4 counts as near", "Each worker counts as a rack of its own, so all links are"),
        (FAST, "topk", "topk with fraction 0.1 counts as", "All workers count as one rack, so no link is"),
    ],
)
async def test_what_is_exchanged_instead_where_racks_are_one_level_is_told_everywhere(
    client: httpx2.AsyncClient, services: Services, speed: float, used: str, loss: str, why: str
) -> None:
    fence = await leader(services.store)
    asked = {"scheme": "topk", "fraction": 0.1, "across": "int4"}
    found = await placed(services.store, fence, communication=asked)
    found = await services.store.reconciler.transition(found, JobState.RUNNING, Transition(), fence)
    of_step = {"step_s": 0.5, "exchange_s": 0.2, "exposed_s": 0.1, "wire_bytes": 1e6, "samples_per_s": 100.0}
    records = tuple(record(n, **of_step) for n in range(1, 21))
    await told(services, found, topology_of([[speed] * 3] * 3), "topk across int4", records)
    sentence = f"{why} between racks: gradients travel as {used} instead of topk across int4"
    explained = (await client.get(f"{API}/jobs/{found.id}/explain")).json()["details"]
    assert f"{sentence}." in explained
    is_told = "By topk the largest 10 % of gradients travel, their values as int8." in explained
    assert is_told == (used == "topk")
    assert f"(asked for in the spec) {sentence}." in (await client.get(f"/jobs/{found.id}?tab=system")).text
    [section] = (await client.get(f"{API}/jobs/{found.id}/report")).json()["sections"]
    assert section["name"] == f"Gradients {used}, where topk across int4 is asked for"
    assert sentence[1:] in section["evidence"]
    assert loss in section["evidence"]


async def test_of_an_ended_job_its_report_and_page_tell_what_its_last_exchange_was(
    client: httpx2.AsyncClient, services: Services
) -> None:
    fence = await leader(services.store)
    found = await placed(services.store, fence, communication={"scheme": "none", "across": "int4"})
    found = await services.store.reconciler.transition(found, JobState.RUNNING, Transition(), fence)
    of_step = {"step_s": 0.5, "exchange_s": 0.2, "exposed_s": 0.1, "wire_bytes": 1e6, "samples_per_s": 100.0}
    records = tuple(record(n, **of_step) for n in range(1, 21))
    name = Exchange.named("none across int4", "asked for in the spec")
    of_three = replace(plan(32), exchange=name)
    for_the_rest = replace(of_three, generation=2, members=of_three.members[:1])
    one_rack, alone = topology_of([[FAST] * 3] * 3), Topology(racks=(0,))
    await told(services, found, one_rack, "none across int4", records)
    for last, topology in ((of_three, None), (for_the_rest, alone), (for_the_rest, None)):
        seen = snapshot(found, (), workers=(), plan=last, num_current=0, topology=topology)
        await services.store.reconciler.fold(seen, 1)
    await services.store.reconciler.transition(found, JobState.FAILED, Transition(reason=Reason.DIVERGED), fence)
    instead = "no link is between racks: gradients travel as none instead of none across int4"

    async def assert_told() -> None:
        [section] = (await client.get(f"{API}/jobs/{found.id}/report")).json()["sections"]
        assert section["name"] == "Gradients none, where none across int4 is asked for"
        assert instead in section["evidence"]

    await assert_told()
    assert instead in (await client.get(f"/jobs/{found.id}?tab=system")).text
    assert (await client.post(f"{API}/jobs/{found.id}/retry")).status_code == 200
    queued = await services.store.reconciler.job(found.id)
    assert queued is not None
    assert not (await services.store.reconciler.admit(queued, 1, fence)).is_heard_of
    await assert_told()


async def test_the_cluster_shows_labels_and_what_links_say_against_them(
    client: httpx2.AsyncClient, services: Services, job: JobRow
) -> None:
    await told(services, job, CONTRADICTED)
    found = (await client.get(f"{API}/cluster")).json()
    Cluster.model_validate(found)
    assert [(node["rack"], len(node["rack_doubts"])) for node in found["nodes"]] == [("a", 1), ("b", 2), ("b", 1)]
    doubt = found["nodes"][2]["rack_doubts"][0]
    assert (doubt["job_id"], doubt["told"]) == (
        job.id,
        "By label it is in the same rack as node host-n2, but their link (48 Mbit/s and 0.9 ms) is one between racks.",
    )
    page = (await client.get("/cluster")).text
    assert page.count(" · rack b<") == 2
    assert page.count("is one between racks.") == 2
    assert page.count("in another rack than node") == 2


@pytest.mark.parametrize(
    ("topology", "shown"),
    [
        (None, [">a<", ">b<"]),
        (unmeasured(3), [">1 (a)<", ">1 (b)<", "Links were not all measured within a second"]),
        (unmeasured(3, LABELS), [">1 (a)<", ">2 (b)<", "by the label concertina.io/rack of their nodes"]),
    ],
    ids=["nobody looked", "no time, not all labelled", "no time"],
)
async def test_the_page_tells_what_racks_are_known_by(
    topology: Topology | None, shown: list[str], client: httpx2.AsyncClient, services: Services, job: JobRow
) -> None:
    await told(services, job, topology)
    page = (await client.get(f"/jobs/{job.id}?tab=system")).text
    assert [text for text in shown if text not in page] == []
    assert ((await client.get(f"{API}/jobs/{job.id}")).json()["racks"] is None) == (topology is None)


def test_a_row_about_racks_is_a_sentence_of_its_own() -> None:
    row = {"kind": "exchange", "actor": "racks", "reason": "labels and links differ: so", "before": {"labels": ["a"]}}
    assert sentence({**row, "after": {"racks": [0, 1], "found_by": "links"}}) == "Labels and links differ: so"
