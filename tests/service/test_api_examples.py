"""The examples in ``/openapi.json``: calls accept them as they stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from jsonschema import Draft202012Validator

from service.api.examples import CONFIGURATION_EXAMPLES
from service.records import ClusterView, NodeView
from service.services import Services
from tests.service.given import leader, spec_document
from tests.service.scheduled import schedule_document
from tests.service.swept import sweep_document

pytestmark = pytest.mark.anyio

V1 = "/api/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """How one is made; ``schema`` can be applied by itself."""

    method: str
    path: str
    schema: dict[str, Any]
    examples: dict[str, Any]


@pytest.fixture
async def calls(client: httpx2.AsyncClient) -> dict[str, Call]:
    """By operation, all that the document says to take JSON."""
    document = (await client.get("/openapi.json")).json()
    found = {}
    for path, of_path in document["paths"].items():
        for method, call in of_path.items():
            body = call.get("requestBody", {}).get("content", {}).get("application/json")
            if body is not None:
                schema = {**body["schema"], "components": document["components"]}
                examples = body.get("examples", {})
                found[call["operationId"]] = Call(method=method, path=path, schema=schema, examples=examples)
    return found


async def made(client: httpx2.AsyncClient, services: Services) -> dict[str, str]:
    """What examples refer to, and something for every parameter of a path."""
    digits = CONFIGURATION_EXAMPLES["digits"]["value"]
    (await client.put(f"{V1}/configurations/digits", json=digits)).raise_for_status()
    node = NodeView(node_id="aa11", name="one", is_alive=True, total={"cpus": 4.0}, free={"cpus": 4.0})
    await services.store.reconciler.put_cluster(ClusterView(is_up=True, nodes=(node,)), await leader(services.store))
    ids = {"name": "digits", "node": "one"}
    schedule = schedule_document(name="hourly")
    for kind, document in (("job", spec_document()), ("sweep", sweep_document()), ("schedule", schedule)):
        answer = await client.post(f"{V1}/{kind}s", json=document)
        ids[f"{kind}_id"] = answer.raise_for_status().json()["id"]
    return ids


async def test_every_call_that_takes_anything_in_json_shows_it(calls: dict[str, Call]) -> None:
    with_content = {name: call for name, call in calls.items() if call.schema.get("maxProperties") != 0}
    assert {"jobs_create", "sweeps_create", "schedules_create", "configurations_put", "jobs_scale"} <= set(with_content)
    assert [name for name, call in with_content.items() if not call.examples] == []


async def test_every_example_is_by_the_schema_and_accepted_as_it_stands(
    calls: dict[str, Call], client: httpx2.AsyncClient, services: Services
) -> None:
    ids, refused = await made(client, services), {}
    for name, call in calls.items():
        is_valid = Draft202012Validator(call.schema).is_valid
        for title, example in call.examples.items():
            answer = await client.request(call.method, call.path.format_map(ids), json=example["value"])
            if not answer.is_success or not is_valid(example["value"]):
                refused[name, title] = answer.text
            if name == "schedules_create" and answer.is_success:  # that of another call has its name, too
                await client.delete(answer.headers["location"])
    assert refused == {}


async def test_keys_states_and_names_are_taken_as_the_document_tells(client: httpx2.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]

    def is_valid(method: str, path: str, name: str, value: str) -> bool:
        schemas = {part["name"]: part["schema"] for part in paths[path][method]["parameters"]}
        return Draft202012Validator(schemas[name]).is_valid(value)

    for key, is_good in (("k" * 255, True), ("k" * 256, False), ("", False), ("a key", True)):
        assert is_valid("post", f"{V1}/jobs", "Idempotency-Key", key) is is_good
        answer = await client.post(f"{V1}/jobs", json=spec_document(), headers={"Idempotency-Key": key})
        assert answer.status_code == (201 if is_good else 400)
    for path in (f"{V1}/sweeps", f"{V1}/schedules"):
        for state, is_good in (("PAUSED", True), ("paused", False), ("OTHER", False)):
            assert is_valid("get", path, "state", state) is is_good
            assert (await client.get(path, params={"state": state})).status_code == (200 if is_good else 400)
    for name, is_good in (("digits", True), ("Digits_1", False)):
        assert is_valid("put", f"{V1}/configurations/{{name}}", "name", name) is is_good
        answer = await client.put(f"{V1}/configurations/{name}", json=CONFIGURATION_EXAMPLES["digits"]["value"])
        assert answer.status_code == (201 if is_good else 422)
