"""Taking nodes of the cluster out of use, and back."""

from __future__ import annotations

from fastapi import APIRouter, Request

from service.api.cluster_shapes import Cluster
from service.api.problems import Answer
from service.api.requests import Use, checked_text, read_json
from service.api.schema import REASON_BODY, failures
from service.records import Duty
from service.services import Services

router = APIRouter(prefix="/cluster/nodes/{node}", tags=["system"])

_FAILURES = failures(404, 409, 413)


@router.post(
    "/drain", operation_id="nodes_drain", response_model=Cluster, responses=_FAILURES, openapi_extra=REASON_BODY
)
async def drain(node: str, request: Request, use: Use) -> Answer:
    """Take no more workers there, and move away those that are; the answer is the cluster."""
    return await _said(node, Duty.DRAINED, request, use)


@router.post(
    "/quarantine",
    operation_id="nodes_quarantine",
    response_model=Cluster,
    responses=_FAILURES,
    openapi_extra=REASON_BODY,
)
async def quarantine(node: str, request: Request, use: Use) -> Answer:
    """As ``drain``, for a node that is thought to be broken; the service does it by itself after three losses."""
    return await _said(node, Duty.QUARANTINED, request, use)


@router.post(
    "/uncordon", operation_id="nodes_uncordon", response_model=Cluster, responses=_FAILURES, openapi_extra=REASON_BODY
)
async def uncordon(node: str, request: Request, use: Use) -> Answer:
    """Use it again; losses until now no longer count against it."""
    return await _said(node, Duty.ACTIVE, request, use)


async def _said(node: str, duty: Duty, request: Request, use: Services) -> Answer:
    document = await read_json(request) if await request.body() else {}
    checked_text(node)
    await use.nodes.set_duty(node, duty, document)
    return Answer(await use.overview.cluster())
