"""Words about promotions, for pages and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service import configuration_words, words

GOING_ON = frozenset({"WAITING", "RUNNING"})


def sentence(promotion: Mapping[str, Any]) -> str:
    """How it stands, or what it came to."""
    name, runs, later = promotion["configuration"], promotion["runs"], _later(promotion)
    match promotion["state"]:
        case "WAITING":
            return f"its winner is held against {name} once the sweep has ended"
        case "RUNNING":
            return f"{begun(promotion)}: {runs['ended']} of {runs['started']} runs have ended so far"
        case "PROMOTED":
            came = f"became version {promotion['version']}" if later else f"is at version {promotion['version']} now"
            return f"{name} {came}: {configuration_words.evidence(promotion)}{later}"
        case "KEPT":
            kept = f"{'stayed' if later else 'stays'} at version {promotion['base_version']}"
            return f"{name} {kept}: {promotion['reason']}{later}"
    return f"nothing was promoted to {name}: {promotion['reason']}"


def _later(promotion: Mapping[str, Any]) -> str:
    """What became of the version that it came to; empty where that is still in use."""
    now = promotion["current_version"]
    if now is None:
        return "; it was deleted since"
    version = promotion["version"] or promotion["base_version"]
    return "" if now == version else f"; it was changed since, and is at version {now} now"


def begun(promotion: Mapping[str, Any]) -> str:
    """Of one that goes on, without how far it is."""
    return f"its winner is held against version {promotion['base_version']} of {promotion['configuration']}"


def used(promotion: Mapping[str, Any]) -> str:
    """What its runs took, which the cost of a sweep leaves out; empty before there are any."""
    started, ended = promotion["runs"]["started"], promotion["runs"]["ended"]
    if not started:
        return ""
    left = started - ended if promotion["state"] not in GOING_ON else 0
    ending = f", of which {left:,} {'is' if left == 1 else 'are'} being ended" if left else ""
    which = " of the latest promotion" if promotion["number"] > 1 else ""
    took = words.duration(promotion["worker_s"])
    return f"{words.plural(started, 'run')}{which}{ending}: {took} of worker time, not in the cost of the trials"


def stopped(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What stopping a sweep did to its promotion; empty where there was none to stop."""
    earlier, now = before["promotion"], after["promotion"]
    is_stopped = now is not None and now["state"] == "STOPPED"
    has_ended_by_it = after["state"] == "STOPPED" != before["state"]
    if is_over(before):
        return sentence(now) if is_stopped and after["state"] == before["state"] else ""
    name = earlier["configuration"]
    if is_stopped and goes_on(before):
        return f"its winner is held against {name} no longer, and {name} stays at version {earlier['base_version']}"
    if not goes_on(before) and (is_stopped or has_ended_by_it):
        return f"its winner will not be held against {name}"
    # It ended after the look at it and before the stop.
    return "" if now is None else sentence(now)


def who(contender: Mapping[str, Any]) -> str:
    """A finalist, or the incumbent."""
    return "in use" if contender["trial"] is None else f"trial {contender['trial']}"


def compared(promotion: Mapping[str, Any], metric: str) -> list[dict[str, str]]:
    """A row of a table for each that was compared, what is in use first; none before the end."""
    measured = [promotion["incumbent"], *promotion["finalists"]] if promotion["incumbent"] else []
    return [_measured(each, metric) for each in measured]


def _measured(contender: Mapping[str, Any], metric: str) -> dict[str, str]:
    has_effect, has_saving = (contender.get(key) is not None for key in ("effect", "saving"))
    return {
        "who": who(contender),
        "mean": words.metric_value(metric, contender["mean"]),
        "effect": configuration_words.effect(contender) if has_effect else "–",
        "p_value": words.number(contender["p_value"]) if has_effect else "–",
        "saving": configuration_words.saving(contender) if has_saving else "–",
        "cheaper_p_value": words.number(contender["cheaper_p_value"]) if has_saving else "–",
        "worker_s": words.duration(contender["worker_s"]),
    }


def is_over(sweep: Mapping[str, Any]) -> bool:
    """Whether nothing of its promotion is still to come; also where there is none."""
    return sweep["promotion"] is None or sweep["promotion"]["state"] not in GOING_ON


def goes_on(sweep: Mapping[str, Any]) -> bool:
    """Whether its winner is being held against a configuration now."""
    return sweep["promotion"] is not None and sweep["promotion"]["state"] == "RUNNING"
