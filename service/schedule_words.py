"""Words about schedules, for pages and the command line."""

from __future__ import annotations

from collections.abc import Mapping

_OUTCOMES: Mapping[str, str] = {"BUFFERED": "Waiting", "FAILED": "Not started"}


def state(name: str) -> str:
    """A schedule's state."""
    return name.capitalize()


def outcome(name: str) -> str:
    """What became of a nominal time."""
    return _OUTCOMES.get(name, name.capitalize())
