"""``/configurations`` over HTTP, and their pages."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import pytest

from service.api.configuration_shapes import Configuration, ConfigurationList
from tests.service.given import spec_document
from tests.service.test_api_jobs import assert_problem

pytestmark = pytest.mark.anyio

CONFIGURATIONS = "/api/v1/configurations"


def job(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in spec_document(**changes).items() if key != "name"}


async def test_a_configuration_is_put_read_changed_and_deleted(client: httpx2.AsyncClient) -> None:
    place = f"{CONFIGURATIONS}/digits"
    first = await client.put(place, json=job())
    Configuration.model_validate(first.json())
    assert (first.status_code, first.json()["version"], first.json()["history"]) == (201, 1, [])
    assert first.headers["etag"] == first.json()["etag"]
    # Said again, it is the same: a caller who got no answer may repeat the call.
    again = await client.put(place, json=job())
    assert (again.status_code, again.json()) == (200, first.json())
    changed = await client.put(place, json=job(seed=7), headers={"If-Match": first.headers["etag"]})
    assert (changed.status_code, changed.json()["version"], changed.json()["spec"]["seed"]) == (200, 2, 7)
    (before,) = changed.json()["history"]
    assert (before["version"], before["by"], before["evidence"], before["spec"]["seed"]) == (1, "user", None, 0)
    late = await client.put(place, json=job(seed=8), headers={"If-Match": first.headers["etag"]})
    assert_problem(late, 412, "PRECONDITION_FAILED")
    assert_problem(
        await client.put(f"{CONFIGURATIONS}/new", json=job(), headers={"If-Match": "*"}), 412, "PRECONDITION_FAILED"
    )
    assert (await client.get(place)).json() == changed.json()
    assert (await client.get(place, headers={"If-None-Match": changed.headers["etag"]})).status_code == 304
    assert "Version 2" in (await client.get("/configurations/digits")).text
    assert (await client.delete(place, headers={"If-Match": first.headers["etag"]})).status_code == 412
    assert (await client.delete(place)).status_code == 204
    assert_problem(await client.get(place), 404, "NOT_FOUND")
    assert_problem(await client.delete(place), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("name", "document", "pointer", "told"),
    [
        ("digits", job(steps=0), "/steps", "must be greater than 0 (seen: 0)"),
        ("digits", job() | {"name": "digits"}, "/name", "leave the job's name out"),
        ("digits", job(entrypoint="a:b", bundle="x"), "/bundle", "there is no bundle 'x'"),
        ("digits", [], "", "this is a list"),
        ("Digits_1", job(), "/name", "(seen: 'Digits_1')"),
        ("digits", job(step=3), "/step", "did you mean 'steps'?"),
    ],
)
async def test_a_bad_one_is_refused_with_pointer_value_and_remedy(
    client: httpx2.AsyncClient, name: str, document: Any, pointer: str, told: str
) -> None:
    problems = assert_problem(await client.put(f"{CONFIGURATIONS}/{name}", json=document), 422, "INVALID")
    assert [problem["pointer"] for problem in problems["errors"]] == [pointer]
    assert told in problems["errors"][0]["detail"]
    assert (await client.get(CONFIGURATIONS)).json()["configurations"] == []


async def test_lists_come_in_pages_by_name(client: httpx2.AsyncClient) -> None:
    assert "No configuration yet" in (await client.get("/configurations")).text
    for name in ("c", "a", "b-b"):
        await client.put(f"{CONFIGURATIONS}/{name}", json=job())
    first = (await client.get(CONFIGURATIONS, params={"page_size": 2})).json()
    ConfigurationList.model_validate(first)
    following = {"page_size": 2, "page_token": first["next_page_token"]}
    rest = (await client.get(CONFIGURATIONS, params=following)).json()
    assert [each["name"] for page in (first, rest) for each in page["configurations"]] == ["a", "b-b", "c"]
    found = (await client.get(CONFIGURATIONS, params={"search": "b-"})).json()
    assert [each["name"] for each in found["configurations"]] == ["b-b"]
    assert 'href="/configurations/b-b"' in (await client.get("/configurations")).text


async def test_a_page_shows_versions_by_parts_where_they_are_large(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.store.list_parts.MAX_PAGE_BYTES", 1)
    for seed in range(3):
        await client.put(f"{CONFIGURATIONS}/digits", json=job(seed=seed))
    first = (await client.get("/configurations/digits")).text
    assert ("Spec of version 2" in first, "Spec of version 1" in first) == (True, False)
    (older,) = re.findall(r'href="([^"]+)" rel="next">Older versions', first)
    rest = (await client.get(older)).text
    assert ("Spec of version 1" in rest, "Older versions" in rest) == (True, False)
    await client.put(f"{CONFIGURATIONS}/other", json=job())
    other = await client.get(f"{CONFIGURATIONS}/other?{older.partition('?')[2]}")
    assert_problem(other, 400, "BAD_REQUEST")
    assert_problem(await client.get(f"{CONFIGURATIONS}/digits?page_token=x"), 400, "BAD_REQUEST")
