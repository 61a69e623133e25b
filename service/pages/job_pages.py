"""A job's page and its live parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, StreamingResponse

from service.documents import Document
from service.errors import NotFoundError
from service.jobs import ListQuery
from service.logs import LogText
from service.pages import batch, tabs
from service.pages import job as views
from service.pages.cluster import banner
from service.pages.foresight import sizes_view
from service.pages.heat import heat_view
from service.pages.jobs import eval_values
from service.pages.remedies import could_fit, may_hold, remedies_view
from service.pages.render import html, part
from service.pages.source import PageSource

NUM_STATISTICS_POINTS = 2000
NUM_OTHERS = 50
NUM_LOOKED_AT = 50
MAX_RANK_DIGITS = 6
_EXPLAINED = frozenset({"QUEUED", "STARTING", "RECOVERING", "FAILED"})


class JobPages:
    """Everything under ``/jobs/{id}`` that is read."""

    def __init__(self, source: PageSource) -> None:
        self._source = source
        self._tabs: Mapping[str, Callable[[Document, Request], Awaitable[dict[str, Any]]]] = {
            "overview": self._overview,
            "logs": self._logs,
            "metrics": self._metrics,
            "batch": self._batch,
            "system": self._system,
            "events": self._events,
            "attempts": self._attempts,
            "checkpoints": self._checkpoints,
            "files": self._files,
            "spec": self._spec,
            "report": self._report,
        }
        self._parts: Mapping[str, Callable[[Document, Request], Awaitable[dict[str, Any]]]] = {
            "summary": self._summary,
            "actions": self.actions,
            "explain": self._explain,
            "happened": self._happened,
            "size": self.size,
            "size_now": self.size,
            "size_foreseen": self.size,
            "log_part": self._logs,
        }

    async def page(self, job_id: str, request: Request) -> HTMLResponse:
        """The whole page, with the tab that the address names."""
        tab = request.query_params.get("tab", "overview")
        if tab not in self._tabs:
            raise NotFoundError(f"a job's page has no tab {tab[:40]!r}; there are {', '.join(self._tabs)}")
        job = await self._source.job(job_id)
        context = {
            "page": "jobs",
            "tab": tab,
            "tabs": views.TABS.items(),
            "ray": banner(await self._source.overview.health()),
            **await self._summary(job, request),
            **await self.actions(job, request),
            **await self._tabs[tab](job, request),
        }
        return html("job.html", context)

    async def log_file(self, job_id: str, request: Request) -> StreamingResponse:
        """The whole log, of one rank or of all, as a file."""
        job = await self._source.job(job_id)
        parts = self._source.whole_log(job_id, _rank(request.query_params.get("rank", "")))
        # A job's name is a DNS label and its id is ours, so that neither needs quoting.
        headers = {
            "Content-Disposition": f'attachment; filename="{job["name"]}-{job_id}.log"',
            "Cache-Control": "no-cache",
        }
        return StreamingResponse(parts, media_type="text/plain", headers=headers)

    async def live_part(self, job_id: str, name: str, request: Request) -> HTMLResponse:
        """One part of the page, as it is now."""
        if name not in self._parts:
            raise NotFoundError(f"a job's page has no part {name[:40]!r}; there are {', '.join(self._parts)}")
        job = await self._source.job(job_id)
        return part(f"job/{name}.html", await self._parts[name](job, request))

    async def _summary(self, job: Document, request: Request) -> dict[str, Any]:
        return views.summary_view(job)

    async def _explain(self, job: Document, request: Request) -> dict[str, Any]:
        is_wanted = job["state"] in _EXPLAINED or job["workers"]["current"] < job["workers"]["desired"]
        if not is_wanted:
            return {"job": job, "explain": None, "remedies": []}
        told = await self._source.telemetry.explain(job["id"])
        holders: list[Document] = []
        if job["state"] == "QUEUED" and could_fit(job, await self._source.overview.machines()):
            listed, _ = await self._source.listed(ListQuery(states=("RUNNING",), page_size=NUM_LOOKED_AT))
            holders = sorted(filter(may_hold, listed), key=lambda other: -int(other["workers"]["current"]))
        return {"job": job, "explain": told, "remedies": remedies_view(job, holders)}

    async def actions(self, job: Document, request: Request) -> dict[str, Any]:
        """The context of the buttons."""
        return {"job": job, "actions": views.actions_view(job)}

    async def size(self, job: Document, request: Request) -> dict[str, Any]:
        """The context of the scale control."""
        found = await self._source.telemetry.newest_timeline(job["id"])
        return {"job": job, "size": views.size_view(job, found.rows), "foreseen": sizes_view(job)}

    async def _happened(self, job: Document, request: Request) -> dict[str, Any]:
        found = await self._source.telemetry.newest_timeline(job["id"])
        return {"job": job, "timeline": views.timeline_view(found.rows), "num_entries": found.num_rows}

    async def _overview(self, job: Document, request: Request) -> dict[str, Any]:
        found = await self._source.telemetry.newest_timeline(job["id"])
        keys = [f"eval.{name}" for name in eval_values(job)]
        return {
            **await self._explain(job, request),
            "timeline": views.timeline_view(found.rows),
            "num_entries": found.num_rows,
            "size": views.size_view(job, found.rows),
            "foreseen": sizes_view(job),
            "chart": views.chart_view(job, keys, _axis(request)),
        }

    async def _logs(self, job: Document, request: Request) -> dict[str, Any]:
        rank, q = request.query_params.get("rank", ""), request.query_params.get("q", "")
        try:
            log = await self._source.logs(job["id"], _rank(rank), tabs.NUM_SEARCHED_LINES)
        except OSError as error:
            empty = LogText(text="", next_offset=0)
            return {"job": job, "logs": {**tabs.logs_view(empty, job, rank, q), "problem": str(error)}}
        return {"job": job, "logs": tabs.logs_view(log, job, rank, q)}

    async def _metrics(self, job: Document, request: Request) -> dict[str, Any]:
        found = await self._source.metrics(job["id"], None, NUM_STATISTICS_POINTS)
        key = request.query_params.get("key", "")
        return {"metrics": tabs.metrics_view(job, found, key, _axis(request))}

    async def _batch(self, job: Document, request: Request) -> dict[str, Any]:
        found = await self._source.metrics(job["id"], batch.BATCH_KEYS, NUM_STATISTICS_POINTS)
        newest = await self._source.telemetry.newest_timeline(job["id"])
        return {"batch": batch.batch_view(job, found, newest.rows)}

    async def _system(self, job: Document, request: Request) -> dict[str, Any]:
        found = await self._source.metrics(job["id"], None, NUM_STATISTICS_POINTS)
        spans = await self._source.telemetry.rank_spans(job["id"])
        heat = heat_view(job["id"], spans, request.query_params.get("heat", ""))
        return {"system": tabs.system_view(job, found), "heat": heat}

    async def _events(self, job: Document, request: Request) -> dict[str, Any]:
        return {"events": tabs.events_view(await self._source.jobs.events(job["id"]))}

    async def _attempts(self, job: Document, request: Request) -> dict[str, Any]:
        return {"attempts": tabs.attempts_view(await self._source.jobs.events(job["id"]))}

    async def _checkpoints(self, job: Document, request: Request) -> dict[str, Any]:
        return {"checkpoints": tabs.checkpoints_view(job, await self._source.files.checkpoints(job["id"]))}

    async def _files(self, job: Document, request: Request) -> dict[str, Any]:
        try:
            found = await self._source.files.files(job["id"])
        except OSError as error:
            return {"files": {"rows": [], "problem": str(error)}}
        return {"files": {"rows": tabs.files_view(job, found), "problem": None}}

    async def _report(self, job: Document, request: Request) -> dict[str, Any]:
        found = await self._source.telemetry.report(job["id"])
        return {"report": found["sections"][::-1]}

    async def _spec(self, job: Document, request: Request) -> dict[str, Any]:
        listed, _ = await self._source.listed(ListQuery(page_size=NUM_OTHERS))
        others = [o for o in listed if o["id"] != job["id"]]
        other_id = request.query_params.get("with", "")
        compared = None
        if other_id:
            found = await self._source.compare([job["id"], other_id], ["loss"])
            compared = {"other_id": other_id, "differences": found["differences"]}
        return {"spec": tabs.spec_view(job, others, compared)}


def _rank(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= MAX_RANK_DIGITS else None


def _axis(request: Request) -> str:
    return "clock" if request.query_params.get("x") == "clock" else "step"
