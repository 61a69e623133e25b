"""Words about promotions, for pages and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service import configuration_words

GOING_ON = frozenset({"WAITING", "RUNNING"})


def sentence(promotion: Mapping[str, Any]) -> str:
    """How it stands, or what it came to."""
    name, runs = promotion["configuration"], promotion["runs"]
    match promotion["state"]:
        case "WAITING":
            return f"its winner is held against {name} once the sweep has ended"
        case "RUNNING":
            told = f"{runs['ended']} of {runs['started']} runs have ended so far"
            return f"its winner is held against version {promotion['base_version']} of {name}: {told}"
        case "PROMOTED":
            return f"{name} is at version {promotion['version']} now: {configuration_words.evidence(promotion)}"
        case "KEPT":
            return f"{name} stays at version {promotion['base_version']}: {promotion['reason']}"
    return f"nothing was promoted to {name}: {promotion['reason']}"


def who(contender: Mapping[str, Any]) -> str:
    """A finalist, or the incumbent."""
    return "in use" if contender["trial"] is None else f"trial {contender['trial']}"


def is_over(sweep: Mapping[str, Any]) -> bool:
    """Whether nothing of its promotion is still to come; also where there is none."""
    return sweep["promotion"] is None or sweep["promotion"]["state"] not in GOING_ON
