"""A row of a job's timeline as a sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from service.words import count, duration, number, plural, size

_WORKER_IN_REASON = re.compile(r"\bworker (\d+\.\d+):")


def sentence(row: Mapping[str, Any]) -> str:
    """One timeline row of the contract as a sentence, without a full stop.

    ``Worker 1 was lost on node a; went on with 1 of 2 after 0.18 s; no step lost``.
    """
    kind = str(row.get("kind", ""))
    begin = _BEGINNINGS.get(kind, _plain_change)(row)
    parts = [begin, *_consequences(row)]
    return "; ".join(part for part in parts if part)


def _consequences(row: Mapping[str, Any]) -> list[str]:
    cost_s, steps_lost = row.get("cost_s"), row.get("steps_lost")
    parts = []
    if row.get("kind") == "worker_lost":
        before, after = _num(row, "before", "workers"), _num(row, "after", "workers")
        if after:
            span = f" of {before}" if before else ""
            pace = f" after {duration(cost_s)}" if cost_s is not None else ", being agreed now"
            parts.append(f"went on with {after}{span}{pace}")
        elif after == 0:
            parts.append("nobody trains")
    elif cost_s and row.get("kind") == "checkpoint":
        parts.append(f"training held for {duration(cost_s)}")
    elif cost_s and cost_s >= 0.005 and row.get("actor") in _TRYING:
        parts.append(f"trying took {duration(cost_s)} more")
    elif cost_s and cost_s >= 0.005 and row.get("kind") != "end":
        parts.append(f"took {duration(cost_s)}")
    if steps_lost is not None and (steps_lost or row.get("kind") in _MAY_LOSE_STEPS):
        parts.append(_lost_steps(int(steps_lost), is_least=bool(_detail(row, "is_least"))))
    return parts


def _lost_steps(number: int, *, is_least: bool) -> str:
    if not is_least:
        return f"{plural(number, 'step')} lost"
    return f"at least {plural(number, 'step')} lost" if number else "steps that nobody had told of by then are lost"


_TRYING = frozenset({"micro_size", "loaders"})
_MAY_LOSE_STEPS = frozenset({"worker_lost", "controller_lost", "restore", "resize", "failure"})


def _num(row: Mapping[str, Any], side: str, key: str) -> int | None:
    value = (row.get(side) or {}).get(key)
    return int(value) if isinstance(value, int | float) else None


def _detail(row: Mapping[str, Any], *keys: str) -> Any:
    for side in ("before", "after"):
        for key in keys:
            value = (row.get(side) or {}).get(key)
            if value not in (None, ""):
                return value
    return None


def _because(row: Mapping[str, Any]) -> str:
    why = str(row.get("reason") or "").strip().rstrip(".")
    return f": {why}" if why else ""


def _who(row: Mapping[str, Any]) -> str:
    actor = str(row.get("actor") or "")
    return "" if actor in ("", "service", "controller") else f" by {actor}"


def _lost_workers(row: Mapping[str, Any]) -> list[str]:
    names = []
    for lost in (row.get("before") or {}).get("lost") or ():
        name = lost.get("rank") if lost.get("rank") is not None else lost.get("worker_id")
        node = lost.get("node_id")
        names.append(f"{name} was lost" + (f" on node {str(node)[:8]}" if node else ""))
    return names or [f"{name} was lost" for name in _WORKER_IN_REASON.findall(str(row.get("reason") or ""))]


def _start(row: Mapping[str, Any]) -> str:
    num = _num(row, "after", "workers")
    return f"Training started with {plural(num, 'worker')}" if num else f"Training started{_because(row)}"


def _resize(row: Mapping[str, Any]) -> str:
    before, after = _num(row, "before", "workers"), _num(row, "after", "workers")
    if after is None:
        return f"Size changed{_who(row)}{_because(row)}"
    verb = "Resized" if before is None or before == after else ("Grew" if after > before else "Shrank")
    origin = f" from {before}" if before is not None else ""
    return f"{verb}{origin} to {plural(after, 'worker')}{_who(row)}{_because(row)}"


def _worker_lost(row: Mapping[str, Any]) -> str:
    names = _lost_workers(row)
    return f"Worker {', worker '.join(names)}" if names else "A worker was lost"


def _worker_joined(row: Mapping[str, Any]) -> str:
    before, after = _num(row, "before", "workers"), _num(row, "after", "workers")
    subject = plural(after - before, "worker") if before is not None and after and after > before else "A worker"
    return f"{subject} joined" + (f"; {plural(after, 'worker')} in all" if after else "") + _because(row)


def _controller_lost(row: Mapping[str, Any]) -> str:
    return "The controller was lost; another one adopted the workers, which went on training"


def _restore(row: Mapping[str, Any]) -> str:
    why = str(row.get("reason") or "")
    if why.startswith("training from"):
        return f"Went on {why.removeprefix('training ')}"
    if donor := _detail(row, "donor"):
        return f"Took over the state of job {donor}{_because(row)}"
    if _detail(row, "passed_over"):
        return _sentence(row)
    return f"Went on from a checkpoint{_because(row)}"


def _checkpoint(row: Mapping[str, Any]) -> str:
    if _detail(row, "failed"):
        return _sentence(row)
    if _detail(row, "generation"):
        return f"A checkpoint was asked for{_because(row)}"
    step = row.get("step")
    final = "Final checkpoint" if _detail(row, "final", "is_final") else "Checkpoint"
    num_bytes = _detail(row, "size_bytes")
    return f"{final} at step {count(step)}" + (f", {size(num_bytes)}" if num_bytes else "") + _because(row)


def _failure(row: Mapping[str, Any]) -> str:
    return _sentence(row) or "An error was raised"


def _pause(row: Mapping[str, Any]) -> str:
    return _sentence(row) or f"Paused with a checkpoint{_who(row)}"


def _end(row: Mapping[str, Any]) -> str:
    outcome = str(_detail(row, "outcome", "state"))
    ended = _ENDINGS.get(outcome, "ended")
    why = str(row.get("reason") or "").removeprefix(f"{outcome}: ")
    return f"The job {ended} at step {count(row.get('step'))}{_because({'reason': '' if why == outcome else why})}"


_ENDINGS: Mapping[str, str] = {
    "succeeded": "succeeded",
    "failed": "failed",
    "paused": "was paused",
    "cancelled": "was cancelled",
    "requeued": "went back to the queue",
}


def _sentence(row: Mapping[str, Any]) -> str:
    why = str(row.get("reason") or "").strip().rstrip(".")
    return why[:1].upper() + why[1:]


def _plain_change(row: Mapping[str, Any]) -> str:
    kind = str(row.get("kind", "change"))
    noun = _CHANGES.get(kind, kind.replace("_", " ").capitalize())
    before, after = _small(row.get("before")), _small(row.get("after"))
    change = f" {before} → {after}" if before and after else (f" {after}" if after else "")
    return f"{noun}{change}{_who(row)}{_because(row)}"


def _retuned(row: Mapping[str, Any]) -> str:
    before, after = row.get("before") or {}, row.get("after") or {}
    changes = [
        f"{noun} {number(before[key])} → {number(after[key])}" if key in before else f"{noun} {number(after[key])}"
        for key, noun in (("global_batch", "global batch"), ("lr", "learning rate"))
        if key in after
    ]
    return f"{_sentence({'reason': ', '.join(changes)})}{_who(row)}{_because(row)}" if changes else _plain_change(row)


def _small(values: Mapping[str, Any] | None) -> str:
    return ", ".join(number(v) if isinstance(v, int | float) else str(v) for v in (values or {}).values())


_CHANGES: Mapping[str, str] = {
    "batch": "Global batch",
    "lr": "Learning rate",
    "precision": "Precision",
    "exchange": "Gradient exchange",
    "probation": "A change is on trial",
}


def _batch(row: Mapping[str, Any]) -> str:
    if _num(row, "after", "global_batch") is not None:
        return _retuned(row)
    if _detail(row, "parts"):
        return _sentence(row)
    if _detail(row, "loaders"):
        before, after = (row.get("before") or {}).get("loaders"), (row.get("after") or {}).get("loaders")
        stays = after if after == "inline" else f"by {after}"
        return f"Samples read {stays if before == after else f'{before} → {after}'}{_because(row)}"
    key, what = ("micro_tokens", "Tokens a pass") if _detail(row, "micro_tokens") else ("micro_size", "Micro-batch")
    tried, kept = _num(row, "before", key), _num(row, "after", key)
    sizes = f" {tried} → {kept}" if tried else f" {kept}" if kept else ""
    return f"{what}{sizes}{_because(row)}"


def _exchange(row: Mapping[str, Any]) -> str:
    before, after = (row.get("before") or {}).get("scheme"), (row.get("after") or {}).get("scheme")
    if not before or not after:
        return _sentence(row) if _detail(row, "found_by") else _plain_change(row)
    trial = ", on trial" if _detail(row, "expected_gain") else ""
    return f"Gradients {before} → {after}{trial}{_because(row)}"


def _limit(row: Mapping[str, Any]) -> str:
    return _sentence(row) if row.get("actor") in ("sweep", "shares") else f"A limit was reached{_because(row)}"


def _probation(row: Mapping[str, Any]) -> str:
    return _plain_change(row) if _detail(row, "is_kept") is None else _sentence(row)


_BEGINNINGS = {
    "batch": _batch,
    "exchange": _exchange,
    "limit": _limit,
    "lr": _retuned,
    "start": _start,
    "resize": _resize,
    "worker_lost": _worker_lost,
    "worker_joined": _worker_joined,
    "controller_lost": _controller_lost,
    "restore": _restore,
    "checkpoint": _checkpoint,
    "failure": _failure,
    "pause": _pause,
    "probation": _probation,
    "end": _end,
}
