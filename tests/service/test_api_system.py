"""Health, Prometheus, version and the schema."""

from __future__ import annotations

import math
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from service.api.system import look
from service.records import ClusterView
from service.services import Services, build_services
from service.settings import Settings
from tests.service.given import Clock, leader, placed, record, row, snapshot, spec_document
from tests.service.test_api_jobs import assert_problem

pytestmark = pytest.mark.anyio


async def test_ready_needs_database_migrations_and_reconciler_and_ray_only_degrades(
    anonymous: httpx2.AsyncClient, services: Services, clock: Clock
) -> None:
    async def ready() -> tuple[int, str]:
        answer = await anonymous.get("/readyz")
        return answer.status_code, answer.json().get("status") if answer.is_success else answer.json()["detail"]

    assert await ready() == (200, "degraded")  # it has only just begun
    clock.advance(16)
    assert await ready() == (503, "the reconciler gives no sign of life")
    fence = await leader(services.store)
    assert await ready() == (200, "degraded")
    await services.store.reconciler.put_cluster(ClusterView(is_up=True), fence)
    assert await ready() == (200, "ready")
    await services.store.reconciler.put_cluster(ClusterView(is_up=False, error="gone"), fence)
    assert await ready() == (200, "degraded")
    clock.advance(16)
    assert (await ready())[0] == 503
    await services.store.reconciler.renew_lease(fence, 10)
    assert (await ready())[0] == 200
    older = text("UPDATE concertina_version SET version_num = '0000'")
    await services.store.database.write_quietly(lambda conn: conn.execute(older))
    assert await ready() == (503, "the database is not at the newest migration")
    assert (await anonymous.get("/livez")).json() == {"status": "alive"}


async def test_a_clock_that_is_set_back_does_not_make_a_dead_reconciler_live_for_longer(
    settings: Settings, clock: Clock
) -> None:
    steady = Clock()
    use = build_services(settings, clock, steady)
    fence = await leader(use.store)
    await use.store.reconciler.put_cluster(ClusterView(is_up=True), fence)
    clock.advance(-86_400)
    assert (await look(use)).is_ready
    assert (await use.overview.health())["is_up"]
    for _ in range(2):
        clock.advance(16)
        steady.advance(16)
        assert (await look(use)).detail == "the reconciler gives no sign of life"
        await use.store.reconciler.renew_lease(fence, 10)
        assert (await look(use)).is_ready
    assert (await use.overview.health())["is_stale"]
    await use.store.close()


async def test_without_its_database_the_service_lives_and_is_not_ready(
    client: httpx2.AsyncClient, services: Services
) -> None:
    await client.get("/api/v1/jobs")  # the token is known now
    await services.store.close()
    file = services.settings.database_file
    assert file is not None
    for path in file.parent.glob(f"{file.name}*"):
        path.unlink()
    file.mkdir()
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()["detail"]) == (503, "the database does not answer")
    assert answer.headers["retry-after"] == "1"
    assert (await client.get("/livez")).status_code == 200
    for answer in (await client.get("/api/v1/jobs"), await client.post("/api/v1/jobs", json=spec_document())):
        assert assert_problem(answer, 503, "UNAVAILABLE")["detail"].startswith("the database does not answer")
        assert answer.headers["retry-after"] == "1"
    unknown = await client.get("/api/v1/jobs", headers={"Authorization": "Bearer another"})
    assert_problem(unknown, 503, "UNAVAILABLE")
    page = await client.get("/jobs", headers={"Accept": "text/html"})
    assert (page.status_code, "text/html" in page.headers["content-type"]) == (503, True)


async def test_prometheus_gets_totals_without_job_ids(client: httpx2.AsyncClient, services: Services) -> None:
    fence = await leader(services.store)
    job = await placed(services.store, fence)
    told = record(1, step_s=0.5, exchange_s=0.2, exposed_s=0.1, wire_bytes=1e6, wire_ratio=4.0)
    await services.store.reconciler.fold(snapshot(job, [told], timeline=(row("a"),)), fence)
    await services.store.reconciler.fold(snapshot(job, cursor=32), fence)  # no step since
    await client.get(f"/api/v1/jobs/{job.id}/metrics")
    await client.get("/api/v1/nothing/here")
    answer = await client.get("/metrics")
    families = list(text_string_to_metric_families(answer.text))
    samples = {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}
    assert all(family.name.startswith("concertina_") for family in families)
    assert job.id not in answer.text
    assert samples["concertina_jobs", ("state", "STARTING")] == 1
    assert samples["concertina_jobs", ("state", "FAILED")] == 0
    assert samples["concertina_workers",] == 1
    assert samples["concertina_samples",] == 32
    assert (samples["concertina_wire_bytes_per_second",], samples["concertina_wire_ratio",]) == (2e6, 4.0)
    assert samples["concertina_exchange_step_share", ("part", "exchange")] == 0.4
    assert samples["concertina_exchange_step_seconds", ("part", "exposed")] == 0.1
    assert math.isnan(samples["concertina_exchange_step_seconds", ("part", "encode")])
    assert samples["concertina_timeline_entries", ("kind", "resize")] == 1
    assert samples["concertina_reconciler_heartbeat_age_seconds",] == 0
    route = ("route", "/api/v1/jobs/{job_id}/metrics")
    assert samples["concertina_http_requests_total", ("method", "GET"), route, ("status", "200")] == 1
    other = ("route", "other")
    assert samples["concertina_http_requests_total", ("method", "GET"), other, ("status", "404")] == 1
    assert not math.isnan(samples["concertina_process_resident_memory_bytes",])


async def test_the_version_is_told(client: httpx2.AsyncClient) -> None:
    answer = (await client.get("/api/v1/version")).json()
    assert answer["api"] == "v1"
    assert answer["version"]


async def test_the_schema_names_every_call_and_its_errors(app: FastAPI, client: httpx2.AsyncClient) -> None:
    schema: dict[str, Any] = (await client.get("/openapi.json")).json()
    calls = [(path, method, call) for path, of in schema["paths"].items() for method, call in of.items()]
    ids = [call["operationId"] for _, _, call in calls]
    assert len(ids) == len(set(ids))
    routes = {
        (route.path, method.lower())
        for route in iter_route_contexts(app.routes)
        if route.path is not None and route.path.startswith("/api/") and route.methods
        for method in route.methods
    }
    documented = {(path.replace("{path}", "{path:file_path}"), method) for path, method, _ in calls}
    assert routes <= documented
    for path, _, call in calls:
        if path.startswith("/api/"):
            assert {"400", "401", "500"} <= set(call["responses"]), path
        for status, declared in call["responses"].items():
            if status.startswith(("4", "5")) and path.startswith("/api/"):
                assert list(declared["content"]) == ["application/problem+json"], (path, status)
    assert "HTTPValidationError" not in str(schema)
    references = {part.split('"')[0] for part in str(schema).replace("'", '"').split("#/components/schemas/")[1:]}
    assert references <= set(schema["components"]["schemas"])
    body = schema["paths"]["/api/v1/jobs"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/JobSpec"}
