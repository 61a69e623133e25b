"""Input that a careless reader would accept and change: every call refuses it, and nothing is stored."""

from __future__ import annotations

import json

import httpx2
import pytest

from service.services import Services
from tests.service.given import spec_document
from tests.service.test_api_jobs import JOBS, assert_problem, submitted

pytestmark = pytest.mark.anyio

HEADERS = {"Content-Type": "application/json"}


async def test_a_number_in_quotes_is_refused_with_its_place_value_and_remedy(client: httpx2.AsyncClient) -> None:
    answer = await client.post(JOBS, json=spec_document(steps="100"))
    told = assert_problem(answer, 422, "INVALID")["errors"]
    assert told == [
        {"pointer": "/steps", "detail": "must be a whole number (seen: '100'); a number is written without quotes"}
    ]


async def test_a_key_that_stands_twice_is_refused_by_its_name(client: httpx2.AsyncClient, services: Services) -> None:
    job = await submitted(client)
    doubled = json.dumps(spec_document(steps=5))[:-1] + ', "steps": 6}'
    scale = '{"workers": {"min": 1, "min": 2, "max": 2}}'
    for method, url, body, key in (
        ("POST", JOBS, doubled, "steps"),
        ("POST", f"{JOBS}/validate", doubled, "steps"),
        ("PUT", f"{JOBS}/{job['id']}/scale", scale, "min"),
    ):
        answer = await client.request(method, url, content=body, headers=HEADERS)
        assert f"the key '{key}' stands twice; keep one of them" in assert_problem(answer, 400, "BAD_REQUEST")["detail"]
    assert sum((await services.jobs.count_by_state()).values()) == 1
    assert (await client.get(f"{JOBS}/{job['id']}")).json() == job


@pytest.mark.parametrize("levels", [65, 70_000])
async def test_a_body_is_nested_too_deep_in_the_same_words_however_deep(
    client: httpx2.AsyncClient, levels: int
) -> None:
    body = '{"a":' + "[" * levels + "]" * levels + "}"
    answer = await client.post(JOBS, content=body, headers=HEADERS)
    assert assert_problem(answer, 400, "BAD_REQUEST")["detail"] == "the body is nested deeper than 64 levels"


@pytest.mark.parametrize("sign", ["", "-"])
async def test_a_whole_number_that_is_too_long_to_read_is_told_by_its_digits(
    client: httpx2.AsyncClient, sign: str
) -> None:
    answer = await client.post(JOBS, content=f'{{"steps": {sign}{"9" * 5000}}}', headers=HEADERS)
    told = "the body cannot be read as JSON: a whole number has 5000 digits; at most 4300 are read"
    assert assert_problem(answer, 400, "BAD_REQUEST")["detail"] == told
    longest = await client.post(JOBS, content=f'{{"steps": {sign}{"9" * 4300}}}', headers=HEADERS)
    assert_problem(longest, 422, "INVALID")


@pytest.mark.parametrize(
    ("method", "path", "name", "told"),
    [
        ("GET", "/jobs?sate=RUNNING&page_size=5", "sate", "unknown parameter 'sate'; did you mean 'state'?"),
        ("GET", "/jobs/{id}/metrics?points=5", "points", "unknown parameter 'points'; did you mean 'max_points'?"),
        (
            "GET",
            "/jobs?page_size=5&page_size=6",
            "page_size",
            "'page_size' is given 2 times and takes one value; leave one",
        ),
        ("GET", "/cluster?verbose=1", "verbose", "unknown parameter 'verbose'; known here: none"),
        ("POST", "/jobs/{id}/retry?zzz=start", "zzz", "unknown parameter 'zzz'; known here: from"),
        ("DELETE", "/jobs/{id}?force=1", "force", "unknown parameter 'force'; known here: none"),
    ],
)
async def test_a_parameter_that_would_be_ignored_is_refused_by_every_call(
    client: httpx2.AsyncClient, method: str, path: str, name: str, told: str
) -> None:
    job = await submitted(client)
    answer = await client.request(method, "/api/v1" + path.format(id=job["id"]))
    assert assert_problem(answer, 422, "INVALID")["errors"] == [{"pointer": f"/query/{name}", "detail": told}]
