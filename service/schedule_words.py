"""Words about schedules, for pages and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service import words

_ENDED_SWEEPS = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
_OUTCOMES: Mapping[str, str] = {"BUFFERED": "Waiting", "FAILED": "Not started"}


def state(name: str) -> str:
    """A schedule's state."""
    return name.capitalize()


def outcome(name: str) -> str:
    """What became of a nominal time."""
    return _OUTCOMES.get(name, name.capitalize())


def child(run: Mapping[str, Any]) -> str:
    """How the child of a run stands; ``–`` where there is none."""
    if run["child_state"] is None:
        return "–"
    follows = followed(run)
    return words.state(run["child_state"]) + (f", {follows}" if follows else "")


def followed(run: Mapping[str, Any]) -> str:
    """What goes on though the child has ended; empty where nothing does."""
    is_compared = run["kind"] == "sweep" and run["child_state"] in _ENDED_SWEEPS and run["child_lives"]
    return "its winner is being compared" if is_compared else ""
