"""Taking nodes out of use on the cluster's page. Forms in, a redirect or a part out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from service.documents import Document
from service.errors import NotFoundError, ServiceError
from service.pages.actions import is_live, read_form
from service.pages.cluster import banner, cluster_view
from service.pages.refusals import status_of, told
from service.pages.render import html, part
from service.pages.source import PageSource
from service.records import Duty

_DUTIES = {"drain": Duty.DRAINED, "quarantine": Duty.QUARANTINED, "uncordon": Duty.ACTIVE}


class NodePages:
    """The cluster's page, and what is done on it."""

    def __init__(self, source: PageSource) -> None:
        self._source = source

    async def page(self, request: Request) -> HTMLResponse:
        """Nodes and what runs where."""
        seen = await self._source.overview.cluster()
        return html("cluster.html", {"page": "cluster", "ray": banner(seen), "cluster": cluster_view(seen)})

    async def say(self, node: str, verb: str, request: Request) -> Response:
        """Drain, quarantine or uncordon a node; the first two ask first."""
        if verb not in _DUTIES:
            raise NotFoundError(f"there is no action {verb[:40]!r}; there are {', '.join(_DUTIES)}")
        form, seen = await read_form(request), await self._source.overview.cluster()
        action = _action(cluster_view(seen), node, verb)
        if action is not None and action["ask"] and form.one("confirmed") != "yes":
            return self._confirm(node, verb, action, form.one("reason"), seen)
        problem = None
        try:
            await self._source.nodes.set_duty(node, _DUTIES[verb], {"reason": form.one("reason")})
        except ServiceError as error:
            if not is_live(request):
                raise
            problem = error
        if not is_live(request):
            return RedirectResponse("/cluster", status_code=303)
        view = cluster_view(await self._source.overview.cluster())
        context = {"cluster": view, "problem": told(problem) if problem else None}
        return part("parts/nodes.html", context, status_of(problem) if problem else 200)

    def _confirm(self, node: str, verb: str, action: Mapping[str, str], reason: str, seen: Document) -> HTMLResponse:
        context = {
            "question": action["ask"],
            "consequence": action["lost"],
            "button": action["do"],
            "action": f"/cluster/nodes/{quote(node, safe='')}/{verb}",
            "fields": [("reason", reason)] if reason else [],
            "back": "/cluster",
            "jobs": [],
        }
        return html("confirm.html", {**context, "page": "cluster", "ray": banner(seen)})


def _action(cluster: Mapping[str, Any], node_id: str, verb: str) -> Mapping[str, str] | None:
    actions = [a for node in cluster["nodes"] if node["id"] == node_id for a in node["actions"]]
    return next((action for action in actions if action["verb"] == verb), None)
