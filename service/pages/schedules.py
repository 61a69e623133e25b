"""Schedules as their pages show them: times in two zones, what became of them, what can be done. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import yaml

from service import schedule_words, words
from service.documents import Document
from service.pages.render import moment

LOST = "Its times and its history are lost. What it started stays, and what runs goes on."
_OVERLAPS: Mapping[str, str] = {
    "skip": "a time is skipped while the run before goes on",
    "buffer_one": "one time waits for the run before to end, others are skipped",
    "cancel_other": "the run before is cancelled",
    "allow": "runs go on side by side",
}


def list_view(
    schedules: Sequence[Document], latest: Mapping[str, Document], token: str | None, next_token: str | None
) -> dict[str, Any]:
    """The context of the list; ``latest`` are newest runs by the schedule's id, ``token`` is this page's."""
    return {
        "place": _place("/schedules", token),
        "schedules": [{**_head(each), "latest": _run(each, latest.get(each["id"]))} for each in schedules],
        "older": _place("/schedules", next_token) if next_token else None,
    }


def schedule_view(
    schedule: Document, upcoming: Document, runs: Sequence[Document], tokens: tuple[str | None, str | None]
) -> dict[str, Any]:
    """The context of one schedule's page; ``tokens`` are those of this page of the history and of the next."""
    spec = schedule["spec"]
    place = f"/schedules/{schedule['id']}"
    return {
        "schedule": _head(schedule),
        "upcoming": [_both(time, spec["time_zone"]) for time in upcoming["times"]],
        "notices": upcoming["notices"],
        "runs": [_run(schedule, run) for run in runs],
        "place": _place(place, tokens[0]),
        "older": _place(place, tokens[1]) if tokens[1] else None,
        "newer": place if tokens[0] else None,
        "facts": _facts(spec, schedule["failures_in_a_row"]),
        "actions": actions_view(schedule),
        "spec_text": yaml.safe_dump(spec, sort_keys=False, width=100),
    }


def actions_view(schedule: Document) -> list[dict[str, str]]:
    """What can be done now; deleting asks first."""
    name, state = schedule["name"], schedule["state"]
    found = [_action("trigger", "Run now")]
    if state == "ACTIVE":
        found.append(_action("pause", "Pause"))
    if state == "PAUSED":
        found.append(_action("resume", "Resume"))
    return [
        *found,
        {**_action("delete", "Delete", "danger"), "ask": f"Delete {name}?", "lost": LOST, "do": "Delete it"},
    ]


def _place(path: str, token: str | None) -> str:
    return f"{path}?{urlencode({'page_token': token})}" if token else path


def _action(verb: str, word: str, style: str = "") -> dict[str, str]:
    return {"verb": verb, "word": word, "style": style, "ask": "", "lost": "", "do": ""}


def _head(schedule: Document) -> dict[str, Any]:
    spec, upcoming = schedule["spec"], schedule["next_time"]
    return {
        **{key: schedule[key] for key in ("id", "name", "state", "reason")},
        "cron": spec["cron"],
        "zone": spec["time_zone"],
        "next": _both(upcoming, spec["time_zone"]) if upcoming else None,
        "kinds": list(spec["target"]),
        "starts": [f"{kind} {child['name']}" for kind, child in spec["target"].items()],
        "children": _children(schedule),
    }


def _children(schedule: Document) -> str:
    """The list of what it started: jobs by their label; sweeps, which have none, by its runs."""
    if "sweep" in schedule["spec"]["target"]:
        return f"/sweeps?{urlencode({'schedule': schedule['id']})}"
    return f"/jobs?{urlencode({'label': 'schedule=' + schedule['name']})}"


def _both(time: str, zone: str) -> dict[str, str]:
    """A time for the viewer's zone, and in words for the schedule's."""
    there: datetime = moment(time).astimezone(ZoneInfo(zone))
    return {"time": time, "there": f"{there:%a} {there.day} {there:%b %H:%M %Z}"}


def _run(schedule: Document, run: Document | None) -> dict[str, Any] | None:
    if run is None:
        return None
    return {
        **_both(run["nominal_time"], schedule["spec"]["time_zone"]),
        "outcome": run["outcome"],
        "word": schedule_words.outcome(run["outcome"]),
        "child_id": run["child_id"],
        "child": f"/{run['kind']}s/{run['child_id']}",
        "child_state": run["child_state"],
        "followed": schedule_words.followed(run),
        "reason": run["reason"] or "",
    }


def _facts(spec: Document, num_failures: int) -> list[tuple[str, str]]:
    limit = spec["pause_after_failures"]
    failures = str(num_failures) + (f" of {limit} that pause it" if limit else "")
    bounds = [f"{word} {moment(spec[key]):%Y-%m-%d %H:%M} UTC" for key, word in _BOUNDS if spec[key]]
    jitter = [f"up to {words.duration(spec['jitter_s'])} later"] if spec["jitter_s"] else []
    return [
        ("Times", ", ".join([f"{spec['cron']} in {spec['time_zone']}", *jitter, *bounds])),
        ("When the run before goes on", _OVERLAPS[spec["overlap"]]),
        ("Caught up within", words.duration(spec["catchup_window_s"])),
        ("Failures in a row", failures),
    ]


_BOUNDS = (("start", "from"), ("end", "until"))
