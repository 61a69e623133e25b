"""``/compare`` over HTTP: jobs side by side, and how many of them and of their points."""

from __future__ import annotations

import httpx2
import pytest

from service.api.shapes import Comparison
from service.services import Services
from tests.service.given import leader, placed, record, snapshot, spec
from tests.service.test_api_jobs import assert_problem

pytestmark = pytest.mark.anyio

API = "/api/v1"


@pytest.fixture
async def fence(services: Services, client: httpx2.AsyncClient) -> int:
    return await leader(services.store)


async def test_jobs_are_compared_by_what_differs(client: httpx2.AsyncClient, services: Services, fence: int) -> None:
    one = await placed(services.store, fence, name="one", config={"hidden": 8, "deep": True})
    two = await placed(services.store, fence, name="two", config={"hidden": 16}, optimizer={"lr": 0.1})
    await services.store.reconciler.fold(snapshot(one, [record(1)]), fence)
    await services.store.reconciler.fold(snapshot(two, [record(1, lr=0.1)]), fence)
    found = (await client.get(f"{API}/compare", params={"jobs": f"{one.id},{two.id}", "keys": "loss"})).json()
    Comparison.model_validate(found)
    assert found["differences"] == [
        {"path": "config.deep", "values": {one.id: True}},
        {"path": "config.hidden", "values": {one.id: 8, two.id: 16}},
        {"path": "optimizer.lr", "values": {one.id: 0.001, two.id: 0.1}},
    ]
    assert found["keys"] == ["loss"]
    assert [(s["job_id"], s["name"], len(s["points"])) for s in found["series"]] == [
        (one.id, "one", 1),
        (two.id, "two", 1),
    ]
    assert_problem(await client.get(f"{API}/compare"), 422, "INVALID")
    assert_problem(await client.get(f"{API}/compare", params={"jobs": "job_x"}), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("named", "seen"), [(",", "0 jobs are"), (",".join(f"job_{n}" for n in range(51)), "51 jobs are")]
)
async def test_how_many_jobs_can_be_compared_is_told_with_how_many_were_named(
    client: httpx2.AsyncClient, named: str, seen: str
) -> None:
    refused = assert_problem(await client.get(f"{API}/compare", params={"jobs": named}), 422, "INVALID")
    [problem] = refused["errors"]
    assert problem["pointer"] == "/query/jobs"
    assert problem["detail"] == f"{seen} named; name 1 to 50, such as jobs=ID,ID"


async def test_jobs_whose_specs_are_large_are_compared_in_smaller_numbers(
    client: httpx2.AsyncClient, services: Services
) -> None:
    large = {f"k{n}": "x" * 1000 for n in range(990)}
    ids = [(await services.store.jobs.submit(spec(config=large))).job.id for _ in range(9)]
    assert (await client.get(f"{API}/compare", params={"jobs": ",".join(ids[:8])})).status_code == 200
    refused = assert_problem(await client.get(f"{API}/compare", params={"jobs": ",".join(ids)}), 422, "INVALID")
    assert "the specs of the first 9 jobs have" in refused["errors"][0]["detail"]
    assert "name fewer jobs" in refused["errors"][0]["detail"]


async def test_the_points_of_all_jobs_compared_are_as_many_as_those_of_one_at_most(
    client: httpx2.AsyncClient, services: Services, fence: int
) -> None:
    found = [await placed(services.store, fence, name=f"one-{n}") for n in range(6)]
    for job in found:
        told = [record(n, lr=9.0 if n == 777 else 0.1) for n in range(1, 1701)]
        await services.store.reconciler.fold(snapshot(job, told), fence)
    query = {"jobs": ",".join(job.id for job in found), "max_points": 10_000}
    series = (await client.get(f"{API}/compare", params=query)).json()["series"]
    assert sum(len(each["points"]) for each in series) <= 10_000
    for each in series:
        assert max(point["values"]["lr"] for point in each["points"]) == 9.0
    few = (await client.get(f"{API}/compare", params={**query, "max_points": 40})).json()["series"]
    assert all(2 <= len(each["points"]) <= 40 for each in few)


async def test_the_compare_page_says_which_jobs_it_leaves_out(client: httpx2.AsyncClient, services: Services) -> None:
    ids = [(await services.store.jobs.submit(spec(name=f"one-{n}"))).job.id for n in range(8)]
    assert "are selected" not in (await client.get("/compare", params={"jobs": ",".join(ids[:6])})).text
    page = (await client.get("/compare", params={"jobs": ",".join([*ids, ids[0]])})).text
    assert "8 jobs are selected; the page compares the first 6 and leaves out the others." in page
    assert [f'<a href="/jobs/{job_id}">' in page for job_id in ids] == [True] * 6 + [False] * 2
