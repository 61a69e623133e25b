"""Templates to HTML: the environment, its filters, and the addresses of static files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from service import words
from service.pages.assets import static

_SERVICE = Path(__file__).parents[1]


def utc(text: str) -> str:
    """An RFC 3339 time as people read it: ``2026-08-21 14:05:09 UTC``."""
    return moment(text).strftime("%Y-%m-%d %H:%M:%S UTC")


def moment(text: str) -> datetime:
    """An RFC 3339 time as a value that knows its zone."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def short(identifier: str) -> str:
    """A few characters of an id that tell it from its neighbours.

    Ids of jobs, sweeps and schedules begin with the time they were made, so their last characters are the telling ones.
    """
    return f"…{identifier[-6:]}" if identifier.startswith(("job_", "sweep_", "sched_")) else identifier[:8]


def with_code(text: str) -> Markup:
    """A sentence whose words in backticks are code, as in the terminal."""
    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(text))))


_FILTERS: Mapping[str, Callable[..., Any]] = {
    "utc": utc,
    "short": short,
    "with_code": with_code,
    "number": words.number,
    "count": words.count,
    "rate": words.rate,
    "size": words.size,
    "percent": words.percent,
    "duration": words.duration,
    "state_word": words.state,
    "reason_word": words.reason,
    "metric_word": words.metric,
    "metric_value_of": lambda value, key: words.metric_value(key or "", value),
    "workers_word": words.workers,
    "cost_word": words.cost,
    "gain": words.gain,
}


@cache
def _environment() -> Environment:
    env = Environment(
        loader=FileSystemLoader(_SERVICE / "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(_FILTERS)
    env.globals["static"] = static
    return env


_NEVER_STORE = {"Cache-Control": "no-store"}


def html(template: str, context: Mapping[str, Any], status: int = 200, **headers: str) -> HTMLResponse:
    """A whole page; ``context`` must have everything that the template names."""
    text = _environment().get_template(template).render({"page": "", "is_public": False, "problem": None, **context})
    return HTMLResponse(text, status_code=status, headers=_NEVER_STORE | headers)


def part(template: str, context: Mapping[str, Any], status: int = 200, **headers: str) -> HTMLResponse:
    """A piece of a page, with the macros that pages have."""
    source = '{% import "macros.html" as m with context %}{% include part %}'
    text = _environment().from_string(source).render({"problem": None, **context, "part": template})
    return HTMLResponse(text, status_code=status, headers=_NEVER_STORE | headers)


def login_page(next_path: str = "/jobs", problem: str | None = None, status: int = 200) -> HTMLResponse:
    """The login form; it posts ``token`` and ``next`` to ``/login``."""
    return html("login.html", {"next": next_path, "problem": problem, "is_public": True}, status)


def problem_page(
    title: str, detail: str, status: int, request_id: str = "", *, is_public: bool = False
) -> HTMLResponse:
    """What went wrong, for a person."""
    context = {"title": title, "detail": detail, "request_id": request_id, "ray": NO_BANNER, "is_public": is_public}
    return html("problem.html", context, status)


NO_BANNER: Mapping[str, Any] = {"is_down": False, "seen_at": None, "error": None}
