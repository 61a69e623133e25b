"""The pages of schedules, and what is done on them. Forms in, a redirect or a page out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from service.errors import NotFoundError, ServiceError
from service.pages.actions import is_live, read_form
from service.pages.cluster import banner
from service.pages.refusals import status_of, told
from service.pages.render import html
from service.pages.schedules import actions_view, list_view, schedule_view
from service.pages.source import PageSource
from service.schedule_documents import run_document, schedule_document

_VERBS = ("trigger", "pause", "resume", "delete")
NUM_UPCOMING = 10
NUM_RUNS = 30


class SchedulePages:
    """The list, one schedule, and its actions."""

    def __init__(self, source: PageSource) -> None:
        self._source = source

    async def listed(self, request: Request) -> HTMLResponse:
        """All schedules, newest first."""
        schedules = self._source.schedules
        token = request.query_params.get("page_token") or None
        found = await schedules.page(page_token=token)
        latest = await schedules.latest_runs([row.id for row in found.schedules])
        documents = [schedule_document(row) for row in found.schedules]
        told_of = {schedule_id: run_document(run) for schedule_id, run in latest.items()}
        return await self._html("schedules.html", list_view(documents, told_of, token, found.next_page_token))

    async def page(self, schedule_id: str, request: Request) -> HTMLResponse:
        """One schedule: what comes, and what became of what has come."""
        return await self._page(schedule_id, request.query_params.get("page_token") or None)

    async def act(self, schedule_id: str, verb: str, request: Request) -> Response:
        """Run it now, pause, resume or delete it; the last asks first."""
        if verb not in _VERBS:
            raise NotFoundError(f"there is no action {verb[:40]!r}; there are {', '.join(_VERBS)}")
        row = await self._source.schedules.get(schedule_id)
        action = next((each for each in actions_view(schedule_document(row)) if each["verb"] == verb), None)
        form = await read_form(request)
        if action is not None and action["ask"] and form.one("confirmed") != "yes":
            return await self._confirm(schedule_id, verb, action)
        try:
            await self._carry_out(schedule_id, verb)
        except ServiceError as error:
            if not is_live(request):
                raise
            return await self._page(schedule_id, None, error)
        place = "/schedules" if verb == "delete" else f"/schedules/{schedule_id}"
        if verb == "delete" and is_live(request):
            return Response(headers={"HX-Redirect": place})
        return RedirectResponse(place, status_code=303)

    async def _carry_out(self, schedule_id: str, verb: str) -> None:
        use = self._source.schedules
        match verb:
            case "trigger":
                await use.trigger(schedule_id)
            case "pause":
                await use.pause(schedule_id)
            case "resume":
                await use.resume(schedule_id)
            case _:
                await use.delete(schedule_id)

    async def _page(self, schedule_id: str, token: str | None, error: ServiceError | None = None) -> HTMLResponse:
        schedules = self._source.schedules
        document = schedule_document(await schedules.get(schedule_id))
        upcoming = await schedules.upcoming(schedule_id, NUM_UPCOMING)
        found = await schedules.runs(schedule_id, NUM_RUNS, token)
        runs = [run_document(run) for run in found.runs]
        view = schedule_view(document, upcoming, runs, (token, found.next_page_token))
        problem = told(error) if error else None
        return await self._html("schedule.html", {**view, "problem": problem}, status_of(error) if error else 200)

    async def _confirm(self, schedule_id: str, verb: str, action: Mapping[str, str]) -> HTMLResponse:
        context = {
            "question": action["ask"],
            "consequence": action["lost"],
            "button": action["do"],
            "action": f"/schedules/{schedule_id}/actions/{verb}",
            "fields": [],
            "back": f"/schedules/{schedule_id}",
            "jobs": [],
        }
        return await self._html("confirm.html", context)

    async def _html(self, template: str, context: Mapping[str, Any], status: int = 200) -> HTMLResponse:
        seen = banner(await self._source.overview.cluster())
        return html(template, {"page": "schedules", "ray": seen, **context}, status)
