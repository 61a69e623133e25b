"""The router of the web pages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute

from service.errors import ServiceError
from service.pages.actions import Actions
from service.pages.cluster import banner
from service.pages.configurations import ConfigurationPages
from service.pages.job_pages import JobPages
from service.pages.jobs import Filters, eval_values, list_view, main_metric
from service.pages.nodes import NodePages
from service.pages.refusals import status_of, title_of, told
from service.pages.render import html, part, problem_page
from service.pages.schedule_pages import SchedulePages
from service.pages.source import PageSource
from service.pages.sparks import Sparks
from service.pages.sweep_pages import SweepPages
from service.pages.tabs import differences_view
from service.services import Services
from service.words import STATE_WORDS, metric_value

MAX_COMPARED = 6


class PageRoute(APIRoute):
    """Shows what a use case refuses as a page for a person."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's handler, with refusals turned into pages."""
        handler = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await handler(request)
            except ServiceError as error:
                return problem_page(title_of(error), told(error), status_of(error))

        return shown


class Lists:
    """The pages that show more than one job."""

    def __init__(self, source: PageSource) -> None:
        self._source = source
        self._sparks = Sparks(source)

    async def jobs(self, request: Request) -> HTMLResponse:
        """The list of jobs."""
        asked = request.query_params
        state = asked.get("state", "")
        filters = Filters(
            state=state if state in STATE_WORDS else "",
            q=asked.get("q", "").replace("\0", "").strip(),
            labels=tuple(text for text in asked.getlist("label") if "=" in text),
            page_token=asked.get("page_token", ""),
        )
        listed = await self._source.listed(filters.query())
        context = list_view(filters, listed, await self._source.count_by_state(), await self._sparks.of(listed[0]))
        return html("jobs.html", {**context, "page": "jobs", "ray": banner(await self._source.overview.health())})

    async def compare(self, request: Request) -> HTMLResponse:
        """Two to six jobs side by side."""
        asked = list(dict.fromkeys(i for i in request.query_params.get("jobs", "").split(",") if i))
        ids = asked[:MAX_COMPARED]
        context: dict[str, Any] = {
            "page": "compare",
            "ray": banner(await self._source.overview.health()),
            "jobs": [],
            "problem": _compare_problem(len(asked)),
        }
        if len(ids) < 2:
            return html("compare.html", context)
        jobs = [await self._source.job(job_id) for job_id in ids]
        key = request.query_params.get("key") or main_metric(jobs[0])
        found = await self._source.compare(ids, [key])
        words_of = [
            ", ".join(f"{n} {metric_value(f'eval.{n}', v)}" for n, v in sorted(eval_values(job).items()))
            for job in jobs
        ]
        context |= {
            "jobs": [{**job, "eval_words": text or "–"} for job, text in zip(jobs, words_of, strict=True)],
            "ids": ",".join(ids),
            "key": key,
            "keys": sorted({key, *(await self._source.metrics(ids[0], None, 2))["keys"]}),
            "differences": differences_view(found["differences"], ids),
        }
        return html("compare.html", context)

    async def ray(self) -> HTMLResponse:
        """The line above every page that tells when Ray is away."""
        return part("parts/ray.html", {"ray": banner(await self._source.overview.health())})


def _compare_problem(num_asked: int) -> str | None:
    if num_asked == 1:
        return "One job is selected; comparing takes two or more."
    if num_asked > MAX_COMPARED:
        return f"{num_asked} jobs are selected; the page compares the first {MAX_COMPARED} and leaves out the others."
    return None


async def _home(request: Request) -> Response:
    return RedirectResponse("/jobs", status_code=303)


def build_pages(services: Services) -> APIRouter:
    """All pages but the login form, which ``render.login_page`` makes for whoever guards the door."""
    router = APIRouter(route_class=PageRoute, include_in_schema=False)
    source = PageSource.of(services)
    lists, job = Lists(source), JobPages(source)
    actions, nodes, schedules = Actions(source, job), NodePages(source), SchedulePages(source)
    sweeps, configurations = SweepPages(source), ConfigurationPages(source)
    router.add_api_route("/", _home, methods=["GET"])
    router.add_api_route("/jobs", lists.jobs, methods=["GET"])
    router.add_api_route("/jobs/bulk", actions.bulk, methods=["POST"])
    router.add_api_route("/jobs/{job_id}", job.page, methods=["GET"])
    router.add_api_route("/jobs/{job_id}/log", job.log_file, methods=["GET"])
    router.add_api_route("/jobs/{job_id}/parts/{name}", job.live_part, methods=["GET"])
    router.add_api_route("/jobs/{job_id}/actions/{verb}", actions.command, methods=["POST"])
    router.add_api_route("/jobs/{job_id}/scale", actions.scale, methods=["POST"])
    router.add_api_route("/compare", lists.compare, methods=["GET"])
    router.add_api_route("/sweeps", sweeps.listed, methods=["GET"])
    router.add_api_route("/sweeps/{sweep_id}", sweeps.page, methods=["GET"])
    router.add_api_route("/sweeps/{sweep_id}/actions/{verb}", sweeps.act, methods=["POST"])
    router.add_api_route("/configurations", configurations.listed, methods=["GET"])
    router.add_api_route("/configurations/{name}", configurations.page, methods=["GET"])
    router.add_api_route("/schedules", schedules.listed, methods=["GET"])
    router.add_api_route("/schedules/{schedule_id}", schedules.page, methods=["GET"])
    router.add_api_route("/schedules/{schedule_id}/actions/{verb}", schedules.act, methods=["POST"])
    router.add_api_route("/cluster", nodes.page, methods=["GET"])
    router.add_api_route("/cluster/nodes/{node}/{verb}", nodes.say, methods=["POST"])
    router.add_api_route("/parts/ray", lists.ray, methods=["GET"])
    return router
