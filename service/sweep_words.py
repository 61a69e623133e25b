"""Words about sweeps and their trials, for pages and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service import words


def params(chosen: Mapping[str, Any]) -> str:
    """A point of a space: ``optimizer.lr 0.00123, batch.global_size 64``."""
    return ", ".join(f"{path} {value(each)}" for path, each in chosen.items())


def value(chosen: Any) -> str:
    """One value of a point."""
    if isinstance(chosen, bool) or chosen is None:
        return {True: "true", False: "false", None: "null"}[chosen]
    return words.number(chosen) if isinstance(chosen, float) else str(chosen)


def importance_of(report: Mapping[str, Any]) -> str:
    """Of which trials it is told what mattered."""
    at = report["importance_at"]
    return "Of trials at their ends" if at is None else f"Of trials as they stood after {words.count(at)} samples"


def numbers(trials: Mapping[str, int]) -> str:
    """How far a sweep is: ``12 of 32 trials, 4 running, 1 failed``."""
    parts = [f"{done(trials):,} of {words.plural(trials['total'], 'trial')}"]
    parts += [f"{trials[name]:,} {name}" for name in ("running", "failed") if trials[name]]
    return ", ".join(parts)


def done(trials: Mapping[str, int]) -> int:
    """Trials that have ended, however."""
    return trials["complete"] + trials["pruned"] + trials["failed"]


def best(sweep: Mapping[str, Any]) -> str:
    """Its best value so far with the trial that has it; ``–`` while there is none."""
    found = sweep["best"]
    if found is None:
        return "–"
    which = f"trial {found['trial']}{', not complete' if is_unfinished(sweep) else ''}"
    return f"{words.metric_value(sweep['spec']['metric'], found['value'])} ({which})"


def is_unfinished(sweep: Mapping[str, Any]) -> bool:
    """Whether its best is what led when it was ended, at the furthest rung, as no trial is complete."""
    return sweep["best"] is not None and not sweep["trials"]["complete"]


def best_params(sweep: Mapping[str, Any]) -> str:
    """The point of its best value; of a population the last of the values that its state was trained with."""
    if sweep["best"] is None:
        return ""
    return params(sweep["best"]["params"]) + ("" if sweep["spec"]["population"] is None else " at last")


def bounds(low_high: Mapping[str, float] | None, unit: str) -> str:
    """Two bounds of an estimate: ``10k to 32k samples``."""
    if low_high is None:
        return "not known"
    low, high = (words.number(low_high[end]) for end in ("low", "high"))
    return f"{high} {unit}" if low == high else f"{low} to {high} {unit}"
