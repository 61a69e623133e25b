"""``/jobs``: submit, list, look, command."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field

from service.api.problems import Answer
from service.api.requests import MAX_INT, IfMatch, IfNoneMatch, Key, Use, checked_text, is_unchanged, no_body, read_json
from service.api.schema import EMPTY_BODY, SCALE_BODY, SPEC_BODY, failures, success
from service.api.shapes import Events, Job, JobList
from service.jobs import ListQuery
from service.page_tokens import DEFAULT_PAGE_SIZE
from service.records import JobRow
from service.services import Services
from service.states import Verb
from workers.spec import JobSpec

router = APIRouter(prefix="/jobs", tags=["jobs"])


class ListParams(BaseModel):
    """What a list may be asked for."""

    state: list[str] = Field([], max_length=20, description="several also separated by commas")
    label: list[str] = Field([], max_length=20, description="key=value; all must match")
    name: str | None = Field(None, max_length=63)
    search: str | None = Field(None, max_length=63, description="beginning of an id, or part of a name")
    page_size: int = Field(DEFAULT_PAGE_SIZE, ge=1, le=MAX_INT, description="more than 500 counts as 500")
    page_token: str | None = Field(None, max_length=500)


def job_answer(services: Services, job: JobRow, status: int = 200) -> Answer:
    """The job with its tag."""
    headers = {"ETag": job.etag, "Cache-Control": "no-cache"}
    return Answer(services.job_document(job), status_code=status, headers=headers)


@router.post(
    "",
    operation_id="jobs_create",
    status_code=201,
    response_model=Job,
    responses=success(200, Job, "the job of an earlier call with the same Idempotency-Key") | failures(409, 413),
    openapi_extra=SPEC_BODY,
)
async def create(request: Request, use: Use, idempotency_key: Key = None) -> Answer:
    """Submit a job. With an ``Idempotency-Key``, repeating the call finds the job of the first."""
    document = await read_json(request)
    begin_s = time.perf_counter()
    submitted = await use.jobs.submit(document, idempotency_key)
    use.instruments.submitted(time.perf_counter() - begin_s)
    answer = job_answer(use, submitted.job, 201 if submitted.is_new else 200)
    answer.headers["Location"] = f"/api/v1/jobs/{submitted.job.id}"
    if not submitted.is_new:
        answer.headers["Idempotent-Replayed"] = "true"
    return answer


@router.post(
    "/validate",
    operation_id="jobs_validate",
    response_model=JobSpec,
    responses=failures(413),
    openapi_extra=SPEC_BODY,
)
async def validate(request: Request, use: Use) -> Answer:
    """The resolved spec with every default, or the errors; nothing is stored."""
    return Answer(await use.jobs.validate(await read_json(request)))


@router.get("", operation_id="jobs_list", response_model=JobList, responses=failures())
async def page(use: Use, params: Annotated[ListParams, Query()]) -> Answer:
    """Jobs, newest first.

    A page of large specs ends early, with a ``next_page_token``: the list ends where there is none.
    """
    for text in (params.name, params.search, *params.label):
        checked_text(text)
    query = ListQuery(
        states=tuple(params.state),
        labels=tuple(params.label),
        name=params.name,
        search=params.search,
        page_size=params.page_size,
        page_token=params.page_token,
    )
    found = await use.jobs.page(query)
    return Answer({"jobs": [use.job_document(job) for job in found.jobs], "next_page_token": found.next_page_token})


@router.get("/{job_id}", operation_id="jobs_get", response_model=Job, responses=failures(404) | {304: {}})
async def get(job_id: str, use: Use, if_none_match: IfNoneMatch = None) -> Response:
    """The job, with ``ETag``; the part of the tag before the point is what ``If-Match`` compares."""
    job = await use.jobs.get(job_id)
    if is_unchanged(if_none_match, job.etag):
        return Response(status_code=304, headers={"ETag": job.etag, "Cache-Control": "no-cache"})
    return job_answer(use, job)


@router.delete("/{job_id}", operation_id="jobs_delete", status_code=204, responses=failures(404, 409, 412))
async def delete(job_id: str, use: Use, if_match: IfMatch = None) -> Response:
    """Remove an ended job with its files."""
    await use.jobs.delete(job_id, if_match=if_match)
    return Response(status_code=204)


@router.put(
    "/{job_id}/scale",
    operation_id="jobs_scale",
    response_model=Job,
    responses=failures(404, 409, 412, 413),
    openapi_extra=SCALE_BODY,
)
async def scale(job_id: str, request: Request, use: Use, if_match: IfMatch = None) -> Answer:
    """Wish for a size: a number pins it, a range or ``auto`` frees it."""
    document = await read_json(request)
    return job_answer(use, await use.jobs.scale(job_id, document, if_match=if_match))


@router.get("/{job_id}/events", operation_id="jobs_events", response_model=Events, responses=failures(404))
async def events(job_id: str, use: Use, after: Annotated[int, Query(ge=0, le=MAX_INT)] = 0) -> Answer:
    """State transitions, oldest first."""
    return Answer({"events": await use.jobs.events(job_id, after)})


async def _command(use: Services, job_id: str, verb: Verb, if_match: str | None) -> Answer:
    return job_answer(use, await use.jobs.command(job_id, verb, if_match=if_match))


_COMMAND: dict[str, Any] = {
    "response_model": Job,
    "responses": failures(404, 409, 412, 413),
    "openapi_extra": EMPTY_BODY,
    "dependencies": [Depends(no_body)],
}


@router.post("/{job_id}/cancel", operation_id="jobs_cancel", **_COMMAND)
async def cancel(job_id: str, use: Use, if_match: IfMatch = None) -> Answer:
    """Stop it without saving."""
    return await _command(use, job_id, Verb.CANCEL, if_match)


@router.post("/{job_id}/pause", operation_id="jobs_pause", **_COMMAND)
async def pause(job_id: str, use: Use, if_match: IfMatch = None) -> Answer:
    """Save a checkpoint and release everything."""
    return await _command(use, job_id, Verb.PAUSE, if_match)


@router.post("/{job_id}/resume", operation_id="jobs_resume", **_COMMAND)
async def resume(job_id: str, use: Use, if_match: IfMatch = None) -> Answer:
    """Go on with a paused job."""
    return await _command(use, job_id, Verb.RESUME, if_match)


@router.post("/{job_id}/retry", operation_id="jobs_retry", **_COMMAND)
async def retry(
    job_id: str,
    use: Use,
    origin: Annotated[Literal["start"] | None, Query(alias="from")] = None,
    if_match: IfMatch = None,
) -> Answer:
    """Run an ended job again, from its last checkpoint or ``?from=start``."""
    job = await use.jobs.command(job_id, Verb.RETRY, if_match=if_match, from_start=origin == "start")
    return job_answer(use, job)
