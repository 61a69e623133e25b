"""``/bundles``: code archives."""

from __future__ import annotations

from fastapi import APIRouter, Request

from service.api.problems import Answer
from service.api.requests import Use
from service.api.schema import ZIP_BODY, failures, success
from service.api.shapes import Bundle

router = APIRouter(prefix="/bundles", tags=["bundles"])


@router.post(
    "",
    operation_id="bundles_create",
    status_code=201,
    response_model=Bundle,
    responses=success(200, Bundle, "the same bytes were there already") | failures(413),
    openapi_extra=ZIP_BODY,
)
async def create(request: Request, use: Use) -> Answer:
    """Upload a zip; it is checked, and never extracted or imported here."""
    uploaded = await use.bundles.upload(request.stream())
    row = uploaded.bundle
    document = {"id": row.id, "sha256": row.sha256, "size_bytes": row.size_bytes, "files": row.files}
    return Answer(document, status_code=201 if uploaded.is_new else 200)
