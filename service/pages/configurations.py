"""The pages of configurations: which there are, and what each was and is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import yaml
from fastapi import Request
from fastapi.responses import HTMLResponse

from service import configuration_words
from service.configuration_documents import configuration_document, head_document
from service.configuration_records import BY_HAND
from service.documents import Document
from service.pages.cluster import banner
from service.pages.render import html
from service.pages.source import PageSource

NUM_VERSIONS = 10
"""On one page, each as YAML, which for a large spec takes as long as a second."""


class ConfigurationPages:
    """The list and one configuration; they are changed by sweeps, REST and command line."""

    def __init__(self, source: PageSource) -> None:
        self._source = source

    async def listed(self, request: Request) -> HTMLResponse:
        """All configurations, by name."""
        found = await self._source.configurations.page(page_token=request.query_params.get("page_token") or None)
        token = found.next_page_token
        context = {
            "configurations": [head_document(row) for row in found.configurations],
            "more": _place("/configurations", token),
        }
        return await self._html("configurations.html", context)

    async def page(self, name: str, request: Request) -> HTMLResponse:
        """One configuration with its history."""
        token = request.query_params.get("page_token") or None
        view = await self._source.configurations.view(name, NUM_VERSIONS, token)
        context = await asyncio.to_thread(configuration_view, configuration_document(view))
        return await self._html("configuration.html", context)

    async def _html(self, template: str, context: Mapping[str, Any]) -> HTMLResponse:
        seen = banner(await self._source.overview.health())
        return html(template, {"page": "sweeps", "ray": seen, **context})


def configuration_view(document: Document) -> dict[str, Any]:
    """The context of one configuration's page. Pure."""
    return {
        **{key: document[key] for key in ("name", "version", "created_at", "updated_at")},
        "history": [
            {
                "version": each["version"],
                "replaced_at": each["replaced_at"],
                "by": configuration_words.by(each["by"]),
                "sweep": None if each["by"] == BY_HAND else each["by"],
                "why": configuration_words.evidence(each["evidence"]),
                "spec_text": _spec_text(each["spec"]),
            }
            for each in document["history"]
        ],
        "spec_text": _spec_text(document["spec"]),
        "older": _place(f"/configurations/{document['name']}", document["next_page_token"]),
    }


def _place(path: str, token: str | None) -> str | None:
    return f"{path}?{urlencode({'page_token': token})}" if token else None


def _spec_text(spec: Document) -> str:
    return str(yaml.safe_dump(spec, sort_keys=False, width=100))
