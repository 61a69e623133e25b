"""What people do on pages: commands, the size, many jobs at once. Forms in, a redirect or a part out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from service.documents import Document
from service.errors import BadRequestError, InvalidError, NotFoundError, ServiceError
from service.ids import JOB_ID
from service.pages.cluster import banner
from service.pages.foresight import sizes_view
from service.pages.job import question, size_view
from service.pages.job_pages import JobPages
from service.pages.jobs import BULK_LOST
from service.pages.refusals import status_of, told
from service.pages.render import html, part
from service.pages.source import PageSource

MAX_BULK = 200
MAX_DIGITS = 6
_VERBS = ("cancel", "pause", "resume", "retry", "delete")
_CHANGED = json.dumps({"live:job": None, "live:state": None, "live:timeline": None})


class Form:
    """The fields of a submitted form."""

    def __init__(self, body: bytes) -> None:
        self._fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=1000)

    def one(self, name: str) -> str:
        """The field's first value, empty where it is missing."""
        return self._fields.get(name, [""])[0]

    def all(self, name: str) -> list[str]:
        """All values of the field, each once."""
        return list(dict.fromkeys(self._fields.get(name, [])))


async def read_form(request: Request) -> Form:
    """The form in the body of a request. Raises BadRequestError when it has too many fields."""
    try:
        return Form(await request.body())
    except ValueError as error:
        raise BadRequestError(f"the form cannot be read: {error}") from None


def is_live(request: Request) -> bool:
    """Whether the page itself asks, which wants a part and not a whole page."""
    return request.headers.get("HX-Request") == "true"


class Actions:
    """Everything that pages change."""

    def __init__(self, source: PageSource, pages: JobPages) -> None:
        self._source = source
        self._pages = pages

    async def command(self, job_id: str, verb: str, request: Request) -> Response:
        """Carry out one command; a dangerous one asks first."""
        if verb not in _VERBS:
            raise NotFoundError(f"there is no action {verb[:40]!r}; there are {', '.join(_VERBS)}")
        form = await read_form(request)
        origin = "start" if form.one("from") == "start" else ""
        job = await self._source.job(job_id)
        asked = question(verb, origin, job["name"])
        if asked["ask"] and form.one("confirmed") != "yes":
            return await self._confirm(job, verb, origin, asked)
        try:
            await self._source.command(job_id, verb, from_start=bool(origin))
        except ServiceError as error:
            if not is_live(request):
                raise
            return await self._buttons(job_id, request, error)
        if verb == "delete":
            return _go("/jobs", request, is_elsewhere=True)
        if is_live(request):
            return await self._buttons(job_id, request)
        back = form.one("back")
        return _go(f"/jobs/{back if JOB_ID.fullmatch(back) else job_id}", request)

    async def _buttons(self, job_id: str, request: Request, error: ServiceError | None = None) -> HTMLResponse:
        job = await self._source.job(job_id)
        context = {**await self._pages.actions(job, request), "problem": told(error) if error else None}
        return part("job/actions.html", context, status_of(error) if error else 200, **{"HX-Trigger": _CHANGED})

    async def _confirm(self, job: Document, verb: str, origin: str, asked: Mapping[str, str]) -> HTMLResponse:
        context = {
            "question": asked["ask"],
            "consequence": asked["lost"],
            "button": asked["do"],
            "action": f"/jobs/{job['id']}/actions/{verb}",
            "fields": [("from", origin)] if origin else [],
            "back": f"/jobs/{job['id']}",
            "jobs": [],
        }
        return html("confirm.html", {**context, "page": "jobs", "ray": banner(await self._source.overview.health())})

    async def scale(self, job_id: str, request: Request) -> Response:
        """Ask for a size, or leave it to the service."""
        form = await read_form(request)
        error = None
        try:
            await self._source.scale(job_id, _wanted_size(form), form.one("reason").strip())
        except ServiceError as refused:
            if not is_live(request):
                raise
            error = refused
        if not is_live(request):
            return _go(f"/jobs/{job_id}#size", request)
        job = await self._source.job(job_id)
        size = size_view(job, (await self._source.telemetry.newest_timeline(job_id)).rows)
        context: dict[str, Any] = {
            "job": job,
            "size": size,
            "foreseen": sizes_view(job),
            "problem": told(error) if error else None,
        }
        return part("job/size.html", context, status_of(error) if error else 200, **{"HX-Trigger": _CHANGED})

    async def bulk(self, request: Request) -> Response:
        """One action on all selected jobs; those on which it makes no sense are left as they are."""
        form = await read_form(request)
        job_ids, action = form.all("job")[:MAX_BULK], form.one("action")
        back = form.one("back")
        back = back if back.startswith("/jobs") else "/jobs"
        if action == "compare":
            return _go(f"/compare?{urlencode({'jobs': ','.join(job_ids)})}", request, is_elsewhere=True)
        if action not in ("cancel", "pause") or not job_ids:
            return _go(back, request)
        if action == "cancel" and form.one("confirmed") != "yes":
            return await self._confirm_many(job_ids, back)
        for job_id in job_ids:
            try:
                await self._source.command(job_id, action)
            except ServiceError:
                continue  # ended meanwhile, or never started: nothing is left to do for it
        return _go(back, request)

    async def _confirm_many(self, job_ids: Sequence[str], back: str) -> HTMLResponse:
        jobs = [await self._source.job(job_id) for job_id in job_ids]
        context = {
            "question": "Cancel these jobs?",
            "consequence": BULK_LOST,
            "button": "Cancel them",
            "action": "/jobs/bulk",
            "fields": [("action", "cancel"), ("back", back), *(("job", job_id) for job_id in job_ids)],
            "back": back,
            "jobs": jobs,
        }
        return html("confirm.html", {**context, "page": "jobs", "ray": banner(await self._source.overview.health())})


def _wanted_size(form: Form) -> int | str:
    text = form.one("workers").strip()
    if form.one("auto"):
        return "auto"
    if text.isdecimal() and len(text) <= MAX_DIGITS:
        return int(text)
    raise InvalidError(f"{text[:40]!r} is not a number of workers; give a whole number")


def _go(address: str, request: Request, *, is_elsewhere: bool = False) -> Response:
    """On to another page; a request for a part follows the redirect by itself, unless it leads elsewhere."""
    if is_elsewhere and is_live(request):
        return Response(headers={"HX-Redirect": address})
    return RedirectResponse(address, status_code=303)
