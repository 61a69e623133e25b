"""Many jobs in line: pages and the cluster's answer read no more of them than they show."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from sqlalchemy import Connection, insert, select

from service.api.cluster_shapes import Cluster
from service.ids import IdSource
from service.overview import MAX_DEMAND
from service.records import Autoscaling, ClusterView, NodeView
from service.services import Services
from service.states import JobState
from service.store.observed import fetch_live_jobs
from service.store.opening import Store
from service.store.schema import jobs
from tests.service.given import leader, placed, spec
from tests.service.query_plans import bad_steps, noted_statements, num_rows, num_steps

pytestmark = pytest.mark.anyio

ROOM = {"cpus": 4.0}
NODE = NodeView(node_id="n1", name="host", is_alive=True, total=ROOM, free=ROOM)
GONE = NodeView(node_id="n2", name="gone", is_alive=False, total={"cpus": 64.0}, free={})


def add_queued(conn: Connection, number: int) -> str:
    """Copies of the job that is last in line, behind it; gives the id of the new last one."""
    ids = IdSource()
    in_line = select(jobs).where(jobs.c.state == JobState.QUEUED).order_by(jobs.c.queued_at.desc())
    given = conn.execute(in_line.limit(1)).mappings().one()
    times = [given["queued_at"] + n for n in range(1, number + 1)]
    rows: list[dict[str, Any]] = [
        {**given, "id": ids.job_id(time), "name": f"job-{n}", "queued_at": time} for n, time in enumerate(times)
    ]
    conn.execute(insert(jobs), rows)
    return str(rows[-1]["id"])


async def test_nothing_reads_more_when_more_jobs_wait(client: httpx2.AsyncClient, services: Services) -> None:
    store = services.store
    first = (await store.jobs.submit(spec())).job
    await store.reconciler.put_cluster(ClusterView(is_up=True, nodes=(NODE, GONE)), await leader(store))
    engine = await store.database.read(lambda conn: conn.engine)

    async def read(path: str) -> int:
        with noted_statements(engine) as statements:
            assert (await client.get(path)).status_code == 200
        return await store.database.read(lambda conn: num_rows(conn, statements))

    paths = ["/api/v1/cluster", "/cluster", "/parts/ray", "/jobs", "/compare", "/schedules", f"/jobs/{first.id}"]
    last = await store.database.write_quietly(lambda conn: add_queued(conn, 2 * MAX_DEMAND))
    await read("/parts/ray")  # the token is looked up once
    few = [await read(path) for path in (*paths, f"/jobs/{last}")]
    last = await store.database.write_quietly(lambda conn: add_queued(conn, 3 * MAX_DEMAND))
    assert [await read(path) for path in (*paths, f"/jobs/{last}")] == few


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_the_first_in_line_are_found_without_those_behind_them(store: Store) -> None:
    await placed(store, await leader(store))
    await store.jobs.submit(spec())

    def steps(conn: Connection) -> list[int]:
        found = []
        for number in (200, 1600, 6200):
            add_queued(conn, number)
            found.append(num_steps(conn, lambda: fetch_live_jobs(conn, 100)))
        return found

    few, more, most = await store.database.write_quietly(steps)
    assert more < 1.2 * few
    assert most < 1.2 * few


async def test_the_first_in_line_are_found_along_indexes(store: Store) -> None:
    await placed(store, await leader(store))
    await store.jobs.submit(spec())

    def steps(conn: Connection) -> list[str]:
        add_queued(conn, 200)
        with noted_statements(conn.engine) as statements:
            fetch_live_jobs(conn, 100)
        return bad_steps(conn, statements)

    assert await store.database.write_quietly(steps) == []


async def test_the_line_above_every_page_reads_no_job(client: httpx2.AsyncClient, services: Services) -> None:
    await services.store.jobs.submit(spec())
    engine = await services.store.database.read(lambda conn: conn.engine)
    with noted_statements(engine) as statements:
        assert "Ray is away" in (await client.get("/parts/ray")).text
    assert [text for text, _ in statements if "FROM jobs" in text] == []


async def test_of_a_long_demand_the_first_are_listed_and_the_others_counted(
    client: httpx2.AsyncClient, services: Services
) -> None:
    store = services.store
    fence = await leader(store)
    running = await placed(store, fence, workers={"min": 2, "max": 4})
    first = (await store.jobs.submit(spec(name="first"))).job
    last = await store.database.write_quietly(lambda conn: add_queued(conn, MAX_DEMAND + 20))
    seen = ClusterView(is_up=True, nodes=(NODE,), autoscaling=Autoscaling(num_coming=1, wanted_by=(last,)))
    await store.reconciler.put_cluster(seen, fence)
    found = (await client.get("/api/v1/cluster")).json()
    Cluster.model_validate(found)
    assert [row["job_id"] for row in found["demand"][:2]] == [running.id, first.id]
    assert (len(found["demand"]), found["demand_left_out"]) == (MAX_DEMAND, 22)
    told = (await client.get(f"/api/v1/jobs/{last}/explain")).json()
    assert told["summary"] == "It waits in line: 120 jobs have waited longer."
    assert "and 115 more" in " ".join(told["details"])
    page = (await client.get("/cluster")).text
    assert "And 22 more" in page
    # Whom the autoscaler was asked for is told by name, wherever in line it is.
    assert f"1 node is being started for job-{MAX_DEMAND + 19}." in page
