"""The cluster, the version, health, and what Prometheus scrapes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from service.api.cluster_shapes import Cluster
from service.api.problems import Answer, problem
from service.api.requests import Use
from service.api.schema import OPEN, failures, only
from service.api.shapes import Version
from service.services import Services
from service.store.port import DatabaseAwayError
from service.store.totals import read_totals
from service.version import service_version

router = APIRouter(tags=["system"])
outside = APIRouter(tags=["health"])

HEARTBEAT_LIMIT_S = 15.0
PROMETHEUS_MEDIA_TYPE = "text/plain; version=1.0.0; charset=utf-8"


@router.get("/cluster", operation_id="cluster_get", response_model=Cluster, responses=failures())
async def cluster(use: Use) -> Answer:
    """Nodes, resources, what runs where and what is wanted, as the reconciler saw it last."""
    return Answer(await use.overview.cluster())


@router.get("/version", operation_id="version_get", response_model=Version, responses=failures())
async def version() -> Answer:
    """What answers here."""
    return Answer({"version": service_version(), "api": "v1"})


@outside.get("/livez", operation_id="livez", openapi_extra=OPEN)
async def livez() -> Answer:
    """The process answers."""
    return Answer({"status": "alive"})


@outside.get("/readyz", operation_id="readyz", openapi_extra=OPEN, responses=only(503))
async def readyz(use: Use) -> Answer:
    """``ready``; ``degraded`` while Ray is down (jobs wait); 503 without database, migrations or reconciler."""
    health = await look(use)
    if health.is_ready:
        return Answer({"status": "degraded" if health.is_degraded else "ready"})
    return problem(503, health.detail, "NOT_READY", "")


@outside.get(
    "/metrics",
    operation_id="prometheus",
    response_class=PlainTextResponse,
    responses=only(400, 401, 500) | {200: {"content": {PROMETHEUS_MEDIA_TYPE: {"schema": {"type": "string"}}}}},
)
async def prometheus(use: Use) -> Response:
    """The exposition format of Prometheus."""
    installation = await use.store.leases.installation()
    heartbeat = installation.heartbeat_at
    seen = installation.cluster
    gauges = {
        "sse_clients": float(use.feed.num_streams),
        "reconciler_heartbeat_age_seconds": math.nan if heartbeat is None else use.heartbeat.age_s(heartbeat),
        "cluster_up": float(seen is not None and seen.view.is_up),
    }
    text = use.instruments.render(await read_totals(use.store.database), gauges)
    return Response(text, media_type=PROMETHEUS_MEDIA_TYPE)


@dataclass(frozen=True, slots=True)
class Health:
    """``detail`` names the part that is missing, and nothing that only insiders may know."""

    is_ready: bool
    is_degraded: bool = False
    detail: str = ""


async def look(use: Services) -> Health:
    """Ask the database for all three. At its own start the service gives the reconciler time for its first sign."""
    try:
        installation = await use.store.leases.standing()
    except DatabaseAwayError:
        return Health(False, detail="the database does not answer")
    if installation is None:
        return Health(False, detail="the database is not at the newest migration")
    if min(use.heartbeat.age_s(installation.heartbeat_at), use.heartbeat.watched_s) > HEARTBEAT_LIMIT_S:
        return Health(False, detail="the reconciler gives no sign of life")
    seen = installation.cluster
    is_up = seen is not None and seen.view.is_up and installation.heartbeat_at is not None
    return Health(True, is_degraded=not is_up)
