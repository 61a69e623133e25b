"""``/schedules``: make, list, look, change, run now."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from service.api.problems import Answer
from service.api.requests import (
    MAX_INT,
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
from service.api.schema import EMPTY_BODY, SCHEDULE_BODY, failures, success
from service.api.shapes import Schedule, ScheduleList, ScheduleRun, ScheduleRuns, UpcomingTimes
from service.page_tokens import DEFAULT_PAGE_SIZE
from service.schedule_documents import run_document, schedule_document
from service.schedule_records import ScheduleRow, ScheduleState
from service.schedule_spec import ScheduleSpec
from service.schedules import MAX_UPCOMING

router = APIRouter(prefix="/schedules", tags=["schedules"])


def _answer(row: ScheduleRow, status: int = 200) -> Answer:
    """The schedule with its tag."""
    headers = {"ETag": row.etag, "Cache-Control": "no-cache"}
    return Answer(schedule_document(row), status_code=status, headers=headers)


@router.post(
    "",
    operation_id="schedules_create",
    status_code=201,
    response_model=Schedule,
    responses=success(200, Schedule, "the schedule of an earlier call with the same Idempotency-Key")
    | failures(409, 413),
    openapi_extra=SCHEDULE_BODY,
)
async def create(request: Request, use: Use, idempotency_key: Key = None) -> Answer:
    """Make a schedule. With an ``Idempotency-Key``, repeating the call finds the schedule of the first."""
    created = await use.schedules.create(await read_json(request), idempotency_key)
    answer = _answer(created.schedule, 201 if created.is_new else 200)
    answer.headers["Location"] = f"/api/v1/schedules/{created.schedule.id}"
    if not created.is_new:
        answer.headers["Idempotent-Replayed"] = "true"
    return answer


@router.post(
    "/validate",
    operation_id="schedules_validate",
    response_model=ScheduleSpec,
    responses=failures(413),
    openapi_extra=SCHEDULE_BODY,
)
async def validate(request: Request, use: Use) -> Answer:
    """The resolved spec with every default, or the errors; nothing is stored."""
    return Answer(await use.schedules.validate(await read_json(request)))


@router.get("", operation_id="schedules_list", response_model=ScheduleList, responses=failures())
async def page(
    use: Use,
    state: Annotated[str | None, state_among(ScheduleState)] = None,
    search: Annotated[str | None, Query(max_length=63, description="beginning of an id, or part of a name")] = None,
    page_size: PageSize = DEFAULT_PAGE_SIZE,
    page_token: PageToken = None,
) -> Answer:
    """Schedules, newest first.

    A page of large specs ends early, with a ``next_page_token``: the list ends where there is none.
    """
    found = await use.schedules.page(state, checked_text(search), page_size, page_token)
    documents = [schedule_document(row) for row in found.schedules]
    return Answer({"schedules": documents, "next_page_token": found.next_page_token})


@router.get(
    "/{schedule_id}", operation_id="schedules_get", response_model=Schedule, responses=failures(404) | {304: {}}
)
async def get(schedule_id: str, use: Use, if_none_match: IfNoneMatch = None) -> Response:
    """The schedule, with ``ETag``; the part of the tag before the point is what ``If-Match`` compares."""
    row = await use.schedules.get(schedule_id)
    if is_unchanged(if_none_match, row.etag):
        return Response(status_code=304, headers={"ETag": row.etag, "Cache-Control": "no-cache"})
    return _answer(row)


@router.put(
    "/{schedule_id}",
    operation_id="schedules_replace",
    response_model=Schedule,
    responses=failures(404, 409, 412, 413),
    openapi_extra=SCHEDULE_BODY,
)
async def replace(schedule_id: str, request: Request, use: Use, if_match: IfMatch = None) -> Answer:
    """Exchange the whole spec; one that is paused stays so, one that has ended goes on."""
    return _answer(await use.schedules.replace(schedule_id, await read_json(request), if_match=if_match))


@router.delete("/{schedule_id}", operation_id="schedules_delete", status_code=204, responses=failures(404, 409, 412))
async def delete(schedule_id: str, use: Use, if_match: IfMatch = None) -> Response:
    """Remove a schedule with its history; what it started stays."""
    await use.schedules.delete(schedule_id, if_match=if_match)
    return Response(status_code=204)


@router.get(
    "/{schedule_id}/upcoming",
    operation_id="schedules_upcoming",
    response_model=UpcomingTimes,
    responses=failures(404),
)
async def upcoming(
    schedule_id: str,
    use: Use,
    count: Annotated[int, Query(ge=1, le=MAX_INT, description=f"more than {MAX_UPCOMING} counts as that")] = 10,
) -> Answer:
    """The next nominal times in UTC; of a paused schedule those that it would have."""
    return Answer(await use.schedules.upcoming(schedule_id, count))


@router.get("/{schedule_id}/runs", operation_id="schedules_runs", response_model=ScheduleRuns, responses=failures(404))
async def runs(
    schedule_id: str, use: Use, page_size: PageSize = DEFAULT_PAGE_SIZE, page_token: PageToken = None
) -> Answer:
    """What became of nominal times, the latest first."""
    found = await use.schedules.runs(schedule_id, page_size, page_token)
    return Answer({"runs": [run_document(run) for run in found.runs], "next_page_token": found.next_page_token})


_COMMAND: dict[str, Any] = {
    "response_model": Schedule,
    "responses": failures(404, 409, 412, 413),
    "openapi_extra": EMPTY_BODY,
    "dependencies": [Depends(no_body)],
}


@router.post("/{schedule_id}/pause", operation_id="schedules_pause", **_COMMAND)
async def pause(schedule_id: str, use: Use, if_match: IfMatch = None) -> Answer:
    """Start nothing until it is resumed."""
    return _answer(await use.schedules.pause(schedule_id, if_match=if_match))


@router.post("/{schedule_id}/resume", operation_id="schedules_resume", **_COMMAND)
async def resume(schedule_id: str, use: Use, if_match: IfMatch = None) -> Answer:
    """Go on from now; times that passed meanwhile are not made good."""
    return _answer(await use.schedules.resume(schedule_id, if_match=if_match))


@router.post(
    "/{schedule_id}/trigger",
    operation_id="schedules_trigger",
    response_model=ScheduleRun,
    responses=failures(404, 409, 413),
    openapi_extra=EMPTY_BODY,
    dependencies=[Depends(no_body)],
)
async def trigger(schedule_id: str, use: Use, idempotency_key: Key = None) -> Answer:
    """Run it now, by its own rule of overlap; also one that is paused or has ended."""
    return Answer(await use.schedules.trigger(schedule_id, idempotency_key))
