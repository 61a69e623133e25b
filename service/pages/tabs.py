"""The tabs of a job's page: logs, metrics, system, events, attempts, checkpoints, files, spec. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import yaml

from service import exchange, rounds, scheme_words, words
from service.documents import Document
from service.logs import LogText
from service.pages.job import address
from service.pages.render import moment
from service.racks import one_level, racks_in_words
from workers.exchange_options import NAMED, name_of

NUM_LOG_LINES = 500
NUM_SEARCHED_LINES = 10_000
NUM_RECENT_POINTS = 50
_ERROR_LINE = re.compile(
    r"(\[(rank|worker) [^\]]+\] )?"
    r"(Traceback \(most recent call last\)|\S*(Error|Exception)\b.*:|.*\b(ERROR|CRITICAL|FATAL)\b)"
)
_SHARES = (("data_s", "data"), ("compute_s", "compute"), ("exposed_s", "exchange"), ("optimizer_s", "optimizer"))
_COMMON_KEYS = (
    "loss",
    "samples_per_s",
    "lr",
    "grad_norm",
    "workers",
    "step_s",
    "data_s",
    "compute_s",
    "exchange_s",
    "exposed_s",
    "encode_s",
    "decode_s",
    "wire_bytes",
    "wire_bytes_across",
    "wire_ratio",
    "redone_bytes",
    "optimizer_s",
    "round_steps",
    "memory_bytes",
    "gpu_utilisation",
)


def logs_view(log: LogText, job: Document, rank: str, q: str) -> dict[str, Any]:
    """The newest lines, or those that contain ``q``; the first line that tells an error is marked."""
    lines = log.text.splitlines()
    num_all = len(lines)
    if q:
        lines = [line for line in lines if q.casefold() in line.casefold()]
    shown = lines[-NUM_LOG_LINES:]
    errors = [i for i, line in enumerate(shown) if _ERROR_LINE.match(line)]
    first = errors[0] if errors else None
    if first is None and not q:
        shown, first = _with_earlier_error(lines, shown)
    marked = [_line(text, i == first, bool(errors) and i in errors, bool(q)) for i, text in enumerate(shown)]
    return {
        "lines": marked,
        "has_error": first is not None,
        "ranks": [str(n) for n in range(job["workers"]["max"])],
        "rank": rank,
        "q": q,
        "num_searched": num_all,
        "note": _log_note(len(shown), num_all, q, is_cut=log.is_cut),
        "problem": None,
    }


def _with_earlier_error(lines: list[str], shown: list[str]) -> tuple[list[str], int | None]:
    """When the first error lies before what is shown, show from a little before it on."""
    first = next((i for i, line in enumerate(lines) if _ERROR_LINE.match(line)), None)
    if first is None:
        return shown, None
    begin = max(0, first - 5)
    return lines[begin : begin + NUM_LOG_LINES], first - begin


def _line(text: str, is_first: bool, is_error: bool, is_hit: bool) -> dict[str, Any]:
    mark = "error" if is_error or is_first else ("hit" if is_hit else "")
    return {"text": text, "mark": mark, "is_first": is_first}


def _log_note(num_shown: int, num_all: int, q: str, *, is_cut: bool) -> str:
    if q:
        return f"{words.plural(num_shown, 'line')} with “{q}”"
    if num_shown < num_all or is_cut:
        return f"{num_shown:,} lines shown; there are more"
    return words.plural(num_shown, "line").capitalize()


def metrics_view(job: Document, found: Document, key: str, axis: str) -> dict[str, Any]:
    """Every key with its newest, least and greatest value, and which of them is drawn."""
    values: dict[str, list[float]] = {}
    for point in found["points"]:
        for name, value in point["values"].items():
            if value is not None:
                values.setdefault(name, []).append(value)
    keys = sorted(values, key=_rank_of)
    chosen = key if key in values else (keys[0] if keys else "loss")
    rows = [
        {
            "key": name,
            "url": address(job["id"], "metrics", key=name, x=axis if axis != "step" else ""),
            "last": words.metric_value(name, values[name][-1]),
            "least": words.metric_value(name, min(values[name])),
            "most": words.metric_value(name, max(values[name])),
        }
        for name in keys
    ]
    return {
        "rows": rows,
        "key": chosen,
        "axis": axis,
        "round_steps": rounds.most_steps(p["values"] for p in found["points"]),
        "with_axis": lambda name: address(job["id"], "metrics", key=chosen, x=name if name != "step" else ""),
    }


def _rank_of(key: str) -> tuple[int, str]:
    if key == "loss":
        return (0, key)
    if key.startswith("eval."):
        return (1, key)
    if key.startswith("user."):
        return (2, key)
    return (3 + (_COMMON_KEYS.index(key) if key in _COMMON_KEYS else len(_COMMON_KEYS)), key)


def system_view(job: Document, found: Document) -> dict[str, Any]:
    """Workers now, where the time of a step goes, and what the plan in force says."""
    observed = job.get("observed") or {}
    workers = sorted(observed.get("workers") or (), key=lambda w: (w["rank"] is None, w["rank"] or 0, w["worker_id"]))
    recent = [p["values"] for p in found["points"][-NUM_RECENT_POINTS:] if p["values"].get("step_s")]
    step_s = rounds.a_step(recent, "step_s")
    racks = observed.get("racks") or {}
    return {
        "workers": [{**w, "rack": _rack(w, racks)} for w in workers],
        "has_racks": bool(racks) or any(w.get("rack_label") for w in workers),
        "racks": racks_in_words(observed),
        "shares": _shares(recent, step_s) if step_s else [],
        "step_s": words.seconds_fine(step_s or 0.0),
        "num_points": len(recent),
        "round_steps": rounds.most_steps(recent),
        "exchange": exchange.rows(exchange.figures(recent)),
        "choices": _choices(observed),
    }


def _rack(worker: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The number of the rack that a worker counts to, from 1 on, and its node's label."""
    number, label = (found.get("racks") or {}).get(worker["worker_id"]), worker.get("rack_label")
    if number is None:
        return label or "–"
    return f"{number + 1} ({label})" if label else str(number + 1)


def _shares(recent: Sequence[Mapping[str, float]], step_s: float) -> list[dict[str, Any]]:
    parts = [(name, key, rounds.a_step(recent, key) or 0.0) for key, name in _SHARES]
    rest = max(0.0, step_s - sum(seconds for _, _, seconds in parts))
    whole = sum(seconds for _, _, seconds in parts) + rest
    found, x = [], 0.0
    for name, key, seconds in [*parts, ("other", "", rest)]:
        width = 1000 * seconds / whole
        word = words.metric(key) if key else "The rest"
        found.append(
            {
                "name": name,
                "word": word,
                "share": seconds / whole,
                "seconds": words.seconds_fine(seconds),
                "x": f"{x:.1f}",
                "width": f"{width:.1f}",
            }
        )
        x += width
    return found


def _choices(observed: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not (plan := observed.get("plan")):
        return []
    precision, travels, lr = plan.get("precision") or {}, plan.get("exchange") or {}, plan.get("lr") or {}
    given = tuple((travels.get("options") or {}).items())
    name = name_of(travels.get("scheme", "–"), given)
    scheme = ", ".join([name, *(f"{key} {value}" for key, value in given if key not in NAMED)])
    by_options = scheme_words.in_words(observed, travels.get("scheme", "–"), dict(given))
    told = " ".join(filter(None, (f"{scheme} ({travels.get('why', '')})", one_level(observed, name), by_options)))
    return [
        ("Global batch", f"{words.count(plan.get('global_batch'))} samples"),
        ("Precision", f"{precision.get('format', '–')} ({precision.get('why', '')})"),
        ("Gradient exchange", told),
        ("Learning rate", f"{words.number(lr.get('lr'))} at {words.count(lr.get('base_batch'))} samples"),
    ]


def events_view(events: Sequence[Document]) -> list[dict[str, Any]]:
    """Transitions, the newest first, each with the seconds since the one before."""
    times = [moment(e["time"]) for e in events]
    after = [None, *((b - a).total_seconds() for a, b in pairwise(times))]
    return [{**e, "after_s": s} for e, s in zip(events, after, strict=True)][::-1]


def attempts_view(events: Sequence[Document]) -> list[dict[str, Any]]:
    """Attempts, the newest first, told from the transitions."""
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        number = event["attempt"]
        if not number:
            continue
        attempt = found.setdefault(number, {"number": number, "began_at": event["time"], "lasted_s": None})
        if attempt["lasted_s"] is not None:
            continue  # what follows the end of an attempt leads to the next one
        attempt["state"], attempt["reason"] = event["to"], event["reason"]
        if event["to"] in ("QUEUED", "SUCCEEDED", "FAILED", "CANCELLED", "PAUSED"):
            attempt["lasted_s"] = (moment(event["time"]) - moment(attempt["began_at"])).total_seconds()
    return [found[number] for number in sorted(found, reverse=True)]


def checkpoints_view(job: Document, checkpoints: Sequence[Document]) -> list[dict[str, Any]]:
    """Checkpoints, the newest first, with the reason why each is kept."""
    mode = job["spec"].get("checkpoint", {}).get("mode", "max")
    measured = [c for c in checkpoints if c.get("metric") is not None]
    best = (max if mode == "max" else min)(measured, key=lambda c: c["metric"], default=None)
    return [{**c, "kept_as": _kept_as(c, c is best, c is checkpoints[-1])} for c in reversed(checkpoints)]


def _kept_as(checkpoint: Document, is_best: bool, is_newest: bool) -> str:
    names = [
        word for holds, word in ((checkpoint.get("final"), "final"), (is_best, "best"), (is_newest, "newest")) if holds
    ]
    return ", ".join(names) or "recent"


def files_view(job: Document, files: Sequence[Document]) -> list[dict[str, Any]]:
    """What the code wrote, with the address of each file."""
    return [
        {
            "path": f["path"],
            "url": f"/api/v1/jobs/{job['id']}/files/{quote(f['path'])}",
            "size_bytes": f.get("size_bytes"),
            "modified_at": f.get("modified_at") or f.get("created_at"),
        }
        for f in files
    ]


def spec_view(job: Document, others: Sequence[Document], compared: Document | None) -> dict[str, Any]:
    """The resolved spec as YAML, and its differences to another job's."""
    other = next((o for o in others if compared and o["id"] == compared["other_id"]), None)
    return {
        "yaml": yaml.safe_dump(job["spec"], sort_keys=False, allow_unicode=True, width=100),
        "others": others,
        "other_id": compared["other_id"] if compared else "",
        "other_name": other["name"] if other else "",
        "differences": differences_view(compared["differences"], [job["id"], compared["other_id"]]) if compared else [],
    }


def differences_view(differences: Sequence[Document], job_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Spec differences with one text a job, in the order of ``job_ids``."""
    return [{"path": d["path"], "values": [_text(d["values"].get(i)) for i in job_ids]} for d in differences]


def _text(value: Any) -> str:
    return "–" if value is None else (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
