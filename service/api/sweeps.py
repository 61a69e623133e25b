"""``/sweeps``: make, list, look, steer, extend, report."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from service.api.problems import Answer
from service.api.requests import (
    IfMatch,
    IfNoneMatch,
    Key,
    PageSize,
    PageToken,
    Use,
    checked_text,
    is_unchanged,
    no_body,
    read_json,
    state_among,
)
from service.api.schema import EMPTY_BODY, EXTEND_BODY, PROMOTE_BODY, SWEEP_BODY, failures, success
from service.api.sweep_shapes import Sweep, SweepEstimate, SweepList, SweepReport, SweepTrials
from service.page_tokens import DEFAULT_PAGE_SIZE
from service.services import Services
from service.sweep_documents import trial_document
from service.sweep_records import SweepRow, SweepState
from tuning.spec import SweepSpec
from tuning.trial import TrialState

router = APIRouter(prefix="/sweeps", tags=["sweeps"])


async def _answer(use: Services, row: SweepRow, status: int = 200) -> Answer:
    """The sweep with its tag."""
    (document,) = await use.sweeps.documents([row])
    return Answer(document, status_code=status, headers={"ETag": row.etag, "Cache-Control": "no-cache"})


@router.post(
    "",
    operation_id="sweeps_create",
    status_code=201,
    response_model=Sweep,
    responses=success(200, Sweep, "the sweep of an earlier call with the same Idempotency-Key") | failures(409, 413),
    openapi_extra=SWEEP_BODY,
)
async def create(request: Request, use: Use, idempotency_key: Key = None) -> Answer:
    """Make a sweep, which runs at once. With an ``Idempotency-Key``, repeating the call finds that of the first."""
    created = await use.sweeps.create(await read_json(request), idempotency_key)
    answer = await _answer(use, created.sweep, 201 if created.is_new else 200)
    answer.headers["Location"] = f"/api/v1/sweeps/{created.sweep.id}"
    if not created.is_new:
        answer.headers["Idempotent-Replayed"] = "true"
    return answer


@router.post(
    "/validate",
    operation_id="sweeps_validate",
    response_model=SweepSpec,
    responses=failures(413),
    openapi_extra=SWEEP_BODY,
)
async def validate(request: Request, use: Use) -> Answer:
    """The resolved spec with every default, or the errors; nothing is stored."""
    return Answer(await use.sweeps.validate(await read_json(request)))


@router.post(
    "/estimate",
    operation_id="sweeps_estimate",
    response_model=SweepEstimate,
    responses=failures(413),
    openapi_extra=SWEEP_BODY,
)
async def estimate(request: Request, use: Use) -> Answer:
    """What it would cost, by what earlier jobs of its code did; nothing is stored."""
    return Answer(await use.sweeps.estimate(await read_json(request)))


@router.get("", operation_id="sweeps_list", response_model=SweepList, responses=failures())
async def page(
    use: Use,
    state: Annotated[str | None, state_among(SweepState)] = None,
    search: Annotated[str | None, Query(max_length=63, description="beginning of an id, or part of a name")] = None,
    page_size: PageSize = DEFAULT_PAGE_SIZE,
    page_token: PageToken = None,
) -> Answer:
    """Sweeps, newest first.

    A page of large specs ends early, with a ``next_page_token``: the list ends where there is none.
    """
    found = await use.sweeps.page(state, checked_text(search), page_size=page_size, page_token=page_token)
    documents = await use.sweeps.documents(found.sweeps)
    return Answer({"sweeps": documents, "next_page_token": found.next_page_token})


@router.get("/{sweep_id}", operation_id="sweeps_get", response_model=Sweep, responses=failures(404) | {304: {}})
async def get(sweep_id: str, use: Use, if_none_match: IfNoneMatch = None) -> Response:
    """The sweep, with ``ETag``; the part of the tag before the point is what ``If-Match`` compares."""
    row = await use.sweeps.get(sweep_id)
    if is_unchanged(if_none_match, row.etag):
        return Response(status_code=304, headers={"ETag": row.etag, "Cache-Control": "no-cache"})
    return await _answer(use, row)


@router.get("/{sweep_id}/trials", operation_id="sweeps_trials", response_model=SweepTrials, responses=failures(404))
async def trials(
    sweep_id: str,
    use: Use,
    state: Annotated[str | None, state_among(TrialState)] = None,
    page_size: PageSize = DEFAULT_PAGE_SIZE,
    page_token: PageToken = None,
) -> Answer:
    """Its trials that were started, by number; the job of each tells the rest.

    A page of large parameters ends early, with a ``next_page_token``: the list ends where there is none.
    """
    found = await use.sweeps.trials(sweep_id, state, page_size, page_token)
    documents = [trial_document(trial) for trial in found.trials]
    return Answer({"trials": documents, "next_page_token": found.next_page_token})


@router.get("/{sweep_id}/report", operation_id="sweeps_report", response_model=SweepReport, responses=failures(404))
async def report(sweep_id: str, use: Use) -> Answer:
    """What it found so far: its best over time and what each improvement cost, what mattered, where trials ended."""
    return Answer(await use.sweeps.report(sweep_id))


_COMMAND: dict[str, Any] = {
    "response_model": Sweep,
    "responses": failures(404, 409, 412, 413),
    "openapi_extra": EMPTY_BODY,
    "dependencies": [Depends(no_body)],
}


@router.post("/{sweep_id}/pause", operation_id="sweeps_pause", **_COMMAND)
async def pause(sweep_id: str, use: Use, if_match: IfMatch = None) -> Answer:
    """Save the trials that run, release their workers, start none."""
    return await _answer(use, await use.sweeps.command(sweep_id, "pause", if_match=if_match))


@router.post("/{sweep_id}/resume", operation_id="sweeps_resume", **_COMMAND)
async def resume(sweep_id: str, use: Use, if_match: IfMatch = None) -> Answer:
    """Go on with a paused sweep."""
    return await _answer(use, await use.sweeps.command(sweep_id, "resume", if_match=if_match))


@router.post("/{sweep_id}/stop", operation_id="sweeps_stop", **_COMMAND)
async def stop(sweep_id: str, use: Use, if_match: IfMatch = None) -> Answer:
    """End it with what it has found; trials that have not ended are pruned.

    Of one that has ended the promotion is stopped that comes or goes on: ``promotion`` tells.
    """
    return await _answer(use, await use.sweeps.command(sweep_id, "stop", if_match=if_match))


@router.post("/{sweep_id}/retry-failed", operation_id="sweeps_retry_failed", **_COMMAND)
async def retry_failed(sweep_id: str, use: Use, if_match: IfMatch = None) -> Answer:
    """Let trials that failed go on from their last checkpoints; a sweep that had ended goes on with them."""
    return await _answer(use, await use.sweeps.retry_failed(sweep_id, if_match=if_match))


@router.post(
    "/{sweep_id}/extend",
    operation_id="sweeps_extend",
    response_model=Sweep,
    responses=failures(404, 409, 412, 413),
    openapi_extra=EXTEND_BODY,
)
async def extend(sweep_id: str, request: Request, use: Use, if_match: IfMatch = None) -> Answer:
    """Allow more trials, so many in all; a sweep that had ended goes on."""
    document = await read_json(request)
    return await _answer(use, await use.sweeps.extend(sweep_id, document, if_match=if_match))


@router.post(
    "/{sweep_id}/promote",
    operation_id="sweeps_promote",
    response_model=Sweep,
    responses=failures(404, 409, 412, 413),
    openapi_extra=PROMOTE_BODY,
)
async def promote(sweep_id: str, request: Request, use: Use, if_match: IfMatch = None) -> Answer:
    """Hold its best trials against a configuration on fresh seeds, once it has ended.

    It is replaced if one is proven better, or as good and cheaper.
    """
    document = await read_json(request) if await request.body() else {}
    return await _answer(use, await use.sweeps.promote(sweep_id, document, if_match=if_match))
