"""Sweeps as their pages show them: how far they are, what they found, what can be done. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import yaml

from service import promotion_words, sweep_words, words
from service.documents import Document
from service.pages.sweep_charts import curve_view, levels, map_view, parallel_view, value_of
from tuning.turns import NUM_PARTS
from tuning.verdicts import score

LOST = (
    "Its trials that run or wait are ended where they are. What it has found is kept, and extending it lets it go on."
)
LOST_TRIAL = "It ends where it is and counts as failed; retrying what failed lets it go on from its newest checkpoint."
END_TRIAL = "end-trial"
NUM_ROWS = 100
_ENDED = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
_OPEN = frozenset({"WAITING", "RUNNING"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the page of a sweep was asked for: trials by number or by value, from which row on."""

    is_by_value: bool
    first: int

    def address(self, sweep_id: str, **changed: Any) -> str:
        """The page with these rows; ``sort`` and ``from`` may be changed."""
        asked = {"sort": "best" if self.is_by_value else "", "from": self.first or "", **changed}
        query = urlencode({key: value for key, value in asked.items() if value})
        return f"/sweeps/{sweep_id}" + (f"?{query}" if query else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What documents do not tell: the seconds that it has run, what its winner can be held against (see ``Sweeps``)."""

    ran_s: float
    promotable: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Which sweeps a list shows: those that a search finds, or that the schedule of an id started; a page of them."""

    search: str = ""
    schedule: str = ""
    token: str | None = None

    def address(self) -> str:
        """Of this page."""
        asked = {"q": self.search, "schedule": self.schedule, "page_token": self.token}
        chosen = {key: value for key, value in asked.items() if value}
        return f"/sweeps?{urlencode(chosen)}" if chosen else "/sweeps"


def list_view(sweeps: Sequence[Document], listed: Listed, next_token: str | None) -> dict[str, Any]:
    """The context of the list; ``token`` is this page's."""
    return {
        "place": listed.address(),
        "sweeps": [{**_head(each), "searched": ", ".join(each["spec"]["space"])} for each in sweeps],
        "older": replace(listed, token=next_token).address() if next_token else None,
        "search": listed.search,
        "schedule": listed.schedule,
    }


def sweep_view(sweep: Document, report: Document, trials: Sequence[Document], shown: Shown, now: Now) -> dict[str, Any]:
    """The context of one sweep's page."""
    spec, level_of = sweep["spec"], levels(trials, sweep["spec"]["mode"])
    return {
        "sweep": _head(sweep),
        "place": shown.address(sweep["id"]),
        "facts": _facts(sweep, report),
        "left_s": _left_s(sweep, now.ran_s),
        "actions": actions_view(sweep, now.promotable),
        "caution": report["caution"],
        "promotion": _promotion(sweep),
        "curve": curve_view(report),
        "parallel": parallel_view(spec, trials, level_of),
        "importance": [(path, share, words.percent(share)) for path, share in report["importance"].items()],
        "importance_of": _importance_of(spec, report),
        "schedule": [_stage(each) for each in report["schedule"]],
        "map": map_view(report, level_of),
        "improvements": [_improvement(each, report, trials) for each in reversed(report["improvements"])],
        "rungs": [_rung(each, spec["metric"]) for each in report["rungs"]],
        "no_rungs": _no_rungs(spec),
        **_table(sweep, trials, shown),
        "spec_text": yaml.safe_dump(spec, sort_keys=False, width=100),
    }


def actions_view(sweep: Document, promotable: str | None = None) -> list[dict[str, str]]:
    """What can be done now; stopping asks first. Its winner can be held against the configuration ``promotable``."""
    state, found = sweep["state"], []
    if state == "RUNNING":
        found.append(_action("pause", "Pause"))
    if state == "PAUSED":
        found.append(_action("resume", "Resume"))
    if sweep["trials"]["failed"]:
        found.append(_action("retry-failed", f"Retry {sweep['trials']['failed']} failed"))
    found += _promoting(sweep, promotable)
    if state not in _ENDED:
        ask = {"ask": f"Stop {sweep['name']}?", "lost": LOST, "do": "Stop it"}
        found.append({**_action("stop", "Stop", "danger"), **ask})
    return found


def ending_view(sweep: Document, number: int) -> dict[str, str]:
    """To end one trial, which asks first."""
    ask = {"ask": f"End trial {number} of {sweep['name']}?", "lost": LOST_TRIAL, "do": "End it"}
    return {**_action(END_TRIAL, "End", "danger"), **ask}


def _promoting(sweep: Document, promotable: str | None) -> list[dict[str, str]]:
    """Of a sweep that has ended: compare its winner, or stop that."""
    if sweep["state"] not in _ENDED:
        return []
    if not promotion_words.is_over(sweep):
        return [_action("stop", "Stop comparing")]
    return [_action("promote", f"Promote to {promotable}")] if promotable else []


def _promotion(sweep: Document) -> dict[str, Any] | None:
    """How its winner compares with what is in use."""
    promotion = sweep["promotion"]
    if promotion is None:
        return None
    return {
        "state": promotion["state"],
        "configuration": promotion["configuration"],
        "sentence": promotion_words.sentence(promotion),
        "used": promotion_words.used(promotion),
        "runs": "/jobs?" + urlencode({"label": f"promotion={sweep['id']}"}),
        "rows": promotion_words.compared(promotion, sweep["spec"]["metric"]),
    }


def _action(verb: str, word: str, style: str = "") -> dict[str, str]:
    return {"verb": verb, "word": word, "style": style, "ask": "", "lost": "", "do": ""}


def _head(sweep: Document) -> dict[str, Any]:
    trials, best, spec = sweep["trials"], sweep["best"], sweep["spec"]
    return {
        **{key: sweep[key] for key in ("id", "name", "state", "reason", "created_at", "finished_at")},
        "trials": trials,
        "numbers": sweep_words.numbers(trials),
        "fraction": sweep_words.done(trials) / trials["total"] if trials["total"] else 0.0,
        "metric": spec["metric"],
        "best": words.metric_value(spec["metric"], best["value"]) if best else None,
        "best_trial": best,
        "is_unfinished": sweep_words.is_unfinished(sweep),
        "best_params": sweep_words.best_params(sweep),
        "num_trials": spec["trials"],
    }


def _importance_of(spec: Document, report: Document) -> str:
    if spec["population"] is not None:
        return "Not told of a population, as it changes values while trials train."
    if not report["importance"]:
        return "Told once four trials have come as far as half of all did, and differ."
    told = sweep_words.importance_of(report)
    return f"{told}; without what has conditions." if any(map(_has_condition, spec["space"].values())) else f"{told}."


def _has_condition(distribution: Document) -> bool:
    return bool(distribution.get("when"))


def _stage(stage: Document) -> dict[str, Any]:
    return {**stage, "samples": words.count(stage["samples"]), "params": sweep_words.params(stage["params"])}


def _no_rungs(spec: Document) -> str:
    if spec["population"] is not None:
        return f"Trials of a population are compared with each other {NUM_PARTS} times in their training."
    if spec["pruner"] == "none":
        return "Trials are compared nowhere, as no pruner was asked for."
    return "Nobody knows yet where trials are compared: the first one tells the size of its data."


def _facts(sweep: Document, report: Document) -> list[tuple[str, str]]:
    trials, spec = sweep["trials"], sweep["spec"]
    return [
        ("Running", str(trials["running"])),
        ("Waiting", str(trials["waiting"])),
        ("Complete", str(trials["complete"])),
        ("Pruned", str(trials["pruned"])),
        ("Failed", str(trials["failed"])),
        ("Cost", words.cost(report["cost"])),
        ("At once", str(spec["parallel"])),
    ]


def _left_s(sweep: Document, ran_s: float) -> float | None:
    """If the trials to come take as long as those that have ended; None where nobody can tell."""
    done = sweep_words.done(sweep["trials"])
    if sweep["state"] != "RUNNING" or not done:
        return None
    num_left: int = sweep["trials"]["total"] - done
    return ran_s / done * num_left


def _improvement(better: Document, report: Document, trials: Sequence[Document]) -> dict[str, Any]:
    trial = next((each for each in trials if each["number"] == better["trial"]), None)
    return {
        "number": better["trial"],
        "job_id": trial["job_id"] if trial else None,
        "value": words.metric_value(report["metric"], better["value"]),
        "gain": "–" if better["gain"] is None else words.number(better["gain"]),
        "cost": words.cost({**report["cost"], **better}),
    }


def _rung(rung: Document, metric: str) -> dict[str, str]:
    told = {key: words.count(rung[key]) for key in ("samples", "reached", "waiting", "pruned")}
    return {**told, "best": words.metric_value(metric, rung["best"])}


def _table(sweep: Document, trials: Sequence[Document], shown: Shown) -> dict[str, Any]:
    spec = sweep["spec"]
    ordered = sorted(trials, key=lambda trial: -trial["number"])
    if shown.is_by_value:
        ordered.sort(key=lambda trial: (value_of(trial) is None, -score(value_of(trial) or 0.0, spec["mode"])))
    following = shown.first + NUM_ROWS
    return {
        "columns": list(spec["space"]),
        "rows": [_row(sweep, trial) for trial in ordered[shown.first : following]],
        "num_trials": len(ordered),
        "is_by_value": shown.is_by_value,
        "by_value": shown.address(sweep["id"], **{"sort": "best", "from": ""}),
        "by_number": shown.address(sweep["id"], **{"sort": "", "from": ""}),
        "more": shown.address(sweep["id"], **{"from": following}) if len(ordered) > following else None,
        "first": shown.address(sweep["id"], **{"from": ""}) if shown.first else None,
    }


def _row(sweep: Document, trial: Document) -> dict[str, Any]:
    spec, value = sweep["spec"], value_of(trial)
    chosen = [sweep_words.value(trial["params"][path]) if path in trial["params"] else "–" for path in spec["space"]]
    return {
        **{key: trial[key] for key in ("number", "state", "job_id", "samples", "worker_s")},
        "reason": trial["reason"] or "",
        "value": words.metric_value(spec["metric"], value),
        "is_final": trial["value"] is not None,
        "params": chosen,
        "compare": _beside_the_best(sweep, trial),
        "end": ending_view(sweep, trial["number"]) if trial["job_id"] and trial["state"] in _OPEN else None,
    }


def _beside_the_best(sweep: Document, trial: Document) -> str | None:
    """The page that compares it with the best one so far, which is not itself."""
    best = sweep["best"]
    if best is None or best["trial"] == trial["number"] or value_of(trial) is None:
        return None
    return "/compare?" + urlencode({"jobs": f"{best['job_id']},{trial['job_id']}", "key": sweep["spec"]["metric"]})
