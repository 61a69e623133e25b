"""``/stream``: one stream of Server-Sent Events for all that a page shows."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from service.api.requests import MAX_INT, Use
from service.api.schema import failures
from service.feed import read_last_id, read_topics

router = APIRouter(tags=["stream"])

_EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}


@router.get(
    "/stream",
    operation_id="stream",
    response_class=StreamingResponse,
    responses=failures(404, 429) | _EVENTS,
)
async def stream(
    use: Use,
    topic: Annotated[
        list[str],
        Query(max_length=100, description="jobs, sweeps, schedules, cluster, job:ID, metrics:ID, logs:ID, sweep:ID"),
    ],
    after: Annotated[int | None, Query(ge=0, le=MAX_INT, description="as Last-Event-ID, for the first call")] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """Events named ``job, metrics, timeline, log, sweep, schedule, cluster``; resumable by ``Last-Event-ID``.

    Points come in the order of the rounds; a point at a step that was told before replaces it and
    all later ones (the job went back to a checkpoint). A timeline row comes again when its cost is known.
    """
    topics = read_topics(topic)
    place = read_last_id(last_event_id)
    await use.feed.check(topics)
    headers = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
    frames = use.feed.follow(topics, after if place is None else place)
    return StreamingResponse(frames, media_type="text/event-stream", headers=headers)
