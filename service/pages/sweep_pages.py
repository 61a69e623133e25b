"""The pages of sweeps, and what is done on them. Forms in, a redirect or a page out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from service.errors import ConflictError, InvalidError, NotFoundError, ServiceError
from service.pages.actions import MAX_DIGITS, Form, is_live, read_form
from service.pages.cluster import banner
from service.pages.refusals import status_of, told
from service.pages.render import html
from service.pages.source import PageSource
from service.pages.sweeps import END_TRIAL, Listed, Now, Shown, actions_view, ending_view, list_view, sweep_view
from service.states import Verb
from service.sweep_documents import trial_document
from service.sweep_report import report_document

_VERBS = ("pause", "resume", "stop", "retry-failed", "extend", "promote", END_TRIAL)
MAX_FIRST = 10_000


class SweepPages:
    """The list, one sweep, and its actions."""

    def __init__(self, source: PageSource) -> None:
        self._source = source

    async def listed(self, request: Request) -> HTMLResponse:
        """All sweeps, newest first, or those that a search finds or a schedule started."""
        sweeps = self._source.sweeps
        token = request.query_params.get("page_token") or None
        search, schedule = (request.query_params.get(key, "").replace("\0", "").strip() for key in ("q", "schedule"))
        found = await sweeps.page(search=search, schedule=schedule, page_token=token)
        documents = await sweeps.documents(found.sweeps)
        listed = Listed(search=search, schedule=schedule, token=token)
        return await self._html("sweeps.html", list_view(documents, listed, found.next_page_token))

    async def page(self, sweep_id: str, request: Request) -> HTMLResponse:
        """One sweep: how far it is, and all that it found so far."""
        asked = request.query_params
        first = asked.get("from", "")
        shown = Shown(
            is_by_value=asked.get("sort") == "best",
            first=min(MAX_FIRST, int(first)) if first.isdecimal() and len(first) <= MAX_DIGITS else 0,
        )
        return await self._page(sweep_id, shown)

    async def act(self, sweep_id: str, verb: str, request: Request) -> Response:
        """Pause, resume, stop, extend it, end one trial, or retry what failed; stopping and ending ask first."""
        if verb not in _VERBS:
            raise NotFoundError(f"there is no action {verb[:40]!r}; there are {', '.join(_VERBS)}")
        (document,) = await self._source.sweeps.documents([await self._source.sweeps.get(sweep_id)])
        form = await read_form(request)
        offered = [ending_view(document, _number(form))] if verb == END_TRIAL else actions_view(document)
        action = next((each for each in offered if each["verb"] == verb), None)
        if action is not None and action["ask"] and form.one("confirmed") != "yes":
            return await self._confirm(sweep_id, action, {"trial": form.one("trial")} if verb == END_TRIAL else {})
        try:
            await self._carry_out(sweep_id, verb, form)
        except ServiceError as error:
            if not is_live(request):
                raise
            return await self._page(sweep_id, Shown(is_by_value=False, first=0), error)
        return RedirectResponse(f"/sweeps/{sweep_id}", status_code=303)

    async def _carry_out(self, sweep_id: str, verb: str, form: Form) -> None:
        match verb:
            case "extend":
                await self._source.sweeps.extend(sweep_id, {"trials": _wanted_trials(form)})
            case "promote":
                await self._source.sweeps.promote(sweep_id, await self._wanted(sweep_id))
            case "retry-failed":
                await self._source.sweeps.retry_failed(sweep_id)
            case "end-trial":
                await self._end_trial(sweep_id, _number(form))
            case _:
                await self._source.sweeps.command(sweep_id, verb)

    async def _end_trial(self, sweep_id: str, number: int) -> None:
        view = await self._source.sweeps.view(sweep_id)
        trial = next((each for each in view.trials if each.number == number), None)
        if trial is None:
            raise NotFoundError(f"the sweep has no trial {number}; it has {len(view.trials)}, from 0 on")
        if trial.is_ended:
            raise ConflictError(f"trial {number} is {trial.state} already, so that there is nothing to end")
        await self._source.jobs.command(trial.job_id, Verb.CANCEL)

    async def _wanted(self, sweep_id: str) -> dict[str, str]:
        sweeps = self._source.sweeps
        name = await sweeps.usual_name(await sweeps.get(sweep_id))
        return {} if name is None else {"configuration": name}

    async def _page(self, sweep_id: str, shown: Shown, error: ServiceError | None = None) -> HTMLResponse:
        sweeps = self._source.sweeps
        view = await sweeps.view(sweep_id)
        (document,) = await sweeps.documents([view.sweep])
        now = Now(ran_s=view.sweep.time_s(self._source.clock()), promotable=await sweeps.promotable(view))

        def shown_of() -> dict[str, Any]:
            report = report_document(view, self._source.prices)
            return sweep_view(document, report, [trial_document(trial) for trial in view.trials], shown, now)

        # Thousands of trials take a while: others are answered meanwhile.
        context = await asyncio.to_thread(shown_of)
        problem = told(error) if error else None
        return await self._html("sweep.html", {**context, "problem": problem}, status_of(error) if error else 200)

    async def _confirm(self, sweep_id: str, action: Mapping[str, str], fields: Mapping[str, str]) -> HTMLResponse:
        context = {
            "question": action["ask"],
            "consequence": action["lost"],
            "button": action["do"],
            "action": f"/sweeps/{sweep_id}/actions/{action['verb']}",
            "fields": fields.items(),
            "back": f"/sweeps/{sweep_id}",
            "jobs": [],
        }
        return await self._html("confirm.html", context)

    async def _html(self, template: str, context: Mapping[str, Any], status: int = 200) -> HTMLResponse:
        seen = banner(await self._source.overview.health())
        return html(template, {"page": "sweeps", "ray": seen, **context}, status)


def _wanted_trials(form: Form) -> int:
    return _whole(form.one("trials"), "a number of trials")


def _number(form: Form) -> int:
    return _whole(form.one("trial"), "the number of a trial")


def _whole(given: str, what: str) -> int:
    text = given.strip()
    if text.isdecimal() and len(text) <= MAX_DIGITS:
        return int(text)
    raise InvalidError(f"{text[:40]!r} is not {what}; give a whole number")
