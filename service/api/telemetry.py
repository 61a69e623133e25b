"""What jobs told: ``/jobs/{id}/metrics, timeline, logs, explain, report, checkpoints, files`` and ``/compare``."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Query
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.convertors import Convertor, register_url_convertor

from service.api.problems import Answer
from service.api.requests import MAX_INT, Use
from service.api.schema import failures
from service.api.shapes import Checkpoints, Comparison, ExplanationShape, Metrics, OutputFiles, Report, Timeline
from service.errors import InvalidError
from service.local_files import Download
from service.telemetry import DEFAULT_POINTS, LogQuery, MetricsQuery
from workers.errors import FieldProblem
from workers.telemetry_keys import can_be_reported, no_such_key

router = APIRouter(tags=["telemetry"])

MAX_TOLD = 20


class _FilePath(Convertor[str]):
    """A path whose names may hold a line's end, which Starlette's own ``path`` stops at."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("file_path", _FilePath())

Step = Annotated[int, Query(ge=0, le=MAX_INT)]
Keys = Annotated[list[str] | None, Query(max_length=200, description="one or more, also separated by commas")]
MaxPoints = Annotated[int, Query(ge=2, le=MAX_INT, description="more than 10,000 counts as 10,000")]
_BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}


@router.get("/jobs/{job_id}/metrics", operation_id="jobs_metrics", response_model=Metrics, responses=failures(404))
async def metrics(
    job_id: str, use: Use, keys: Keys = None, since_step: Step = 0, max_points: MaxPoints = DEFAULT_POINTS
) -> Answer:
    """Telemetry by step, downsampled so that peaks stay; ``keys`` are those under which there is something yet."""
    query = MetricsQuery(keys=_telemetry_keys(keys), since_step=since_step, max_points=max_points)
    return Answer(await use.telemetry.metrics(job_id, query))


@router.get("/jobs/{job_id}/timeline", operation_id="jobs_timeline", response_model=Timeline, responses=failures(404))
async def timeline(job_id: str, use: Use, after: Step = 0) -> Answer:
    """What changed while the job ran, oldest first; an answer has a limit: ask until there is none after the last."""
    return Answer({"timeline": await use.telemetry.timeline(job_id, after)})


@router.get(
    "/jobs/{job_id}/logs",
    operation_id="jobs_logs",
    response_class=PlainTextResponse,
    responses=failures(404),
)
async def logs(
    job_id: str,
    use: Use,
    rank: Annotated[int | None, Query(ge=0, le=MAX_INT)] = None,
    tail: Annotated[int | None, Query(ge=0, le=MAX_INT, description="the last lines; not with offset")] = None,
    offset: Annotated[int | None, Query(ge=0, le=MAX_INT, description="X-Next-Offset of the answer before")] = None,
) -> PlainTextResponse:
    """Text of one rank's log or of all; ``X-Next-Offset`` is where to go on. At most about a megabyte."""
    found = await use.telemetry.logs(job_id, LogQuery(rank=rank, tail=tail, offset=offset))
    return PlainTextResponse(found.text, headers={"X-Next-Offset": str(found.next_offset), "Cache-Control": "no-cache"})


@router.get(
    "/jobs/{job_id}/explain", operation_id="jobs_explain", response_model=ExplanationShape, responses=failures(404)
)
async def explain(job_id: str, use: Use) -> Answer:
    """Why it waits or failed, in words."""
    return Answer(await use.telemetry.explain(job_id))


@router.get("/jobs/{job_id}/report", operation_id="jobs_report", response_model=Report, responses=failures(404))
async def report(job_id: str, use: Use) -> Answer:
    """What each optimisation did to the job, measured: steps before a change against steps after it."""
    return Answer(await use.telemetry.report(job_id))


@router.get(
    "/jobs/{job_id}/checkpoints",
    operation_id="jobs_checkpoints",
    response_model=Checkpoints,
    responses=failures(404),
)
async def checkpoints(job_id: str, use: Use) -> Answer:
    """Complete checkpoints, oldest first."""
    return Answer({"checkpoints": await use.files.checkpoints(job_id)})


@router.get(
    "/jobs/{job_id}/checkpoints/{step}",
    operation_id="jobs_checkpoint_download",
    response_class=StreamingResponse,
    responses=failures(404) | _BYTES,
)
async def download_weights(job_id: str, step: Annotated[int, Path(ge=0, le=MAX_INT)], use: Use) -> StreamingResponse:
    """The weights of one checkpoint (safetensors)."""
    return _download(await use.files.open_weights(job_id, step))


@router.get("/jobs/{job_id}/files", operation_id="jobs_files", response_model=OutputFiles, responses=failures(404))
async def files(job_id: str, use: Use) -> Answer:
    """What the code wrote to ``$CONCERTINA_OUTPUT``."""
    return Answer({"files": await use.files.files(job_id)})


@router.get(
    "/jobs/{job_id}/files/{path:file_path}",
    operation_id="jobs_file_download",
    response_class=StreamingResponse,
    responses=failures(404) | _BYTES,
)
async def download_file(job_id: str, path: str, use: Use) -> StreamingResponse:
    """One of those files."""
    return _download(await use.files.open_file(job_id, path))


@router.get("/compare", operation_id="compare", response_model=Comparison, responses=failures(404))
async def compare(
    use: Use,
    jobs: Annotated[list[str], Query(max_length=100, description="ids, also separated by commas")],
    keys: Keys = None,
    max_points: MaxPoints = DEFAULT_POINTS,
) -> Answer:
    """Spec differences and overlaid metrics: of up to 50 jobs, with at most 10,000 points of all of them together."""
    wanted = _split(jobs) or ()
    return Answer(await use.telemetry.compare(wanted, MetricsQuery(keys=_telemetry_keys(keys), max_points=max_points)))


def _split(texts: list[str] | None) -> tuple[str, ...] | None:
    if texts is None:
        return None
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip()) or None


def _telemetry_keys(texts: list[str] | None) -> tuple[str, ...] | None:
    """The keys asked for; what has not been reported yet is none of the answer's. Raises InvalidError."""
    keys = _split(texts)
    wrong = [key for key in keys or () if not can_be_reported(key)]
    if wrong:
        raise InvalidError(
            "a parameter is refused", [FieldProblem("/query/keys", no_such_key(key)) for key in wrong[:MAX_TOLD]]
        )
    return keys


def _download(file: Download) -> StreamingResponse:
    """Bytes that a job wrote: never shown as a page, whatever they are."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in file.name)
    headers = {
        "Content-Length": str(file.size_bytes),
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(file.name)}",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "no-cache",
    }
    return StreamingResponse(file.chunks, media_type="application/octet-stream", headers=headers)
