"""The tab Batch of a job's page: what is in force, who computes what, how loaded each is, what is foreseen. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service import batching, words
from service.documents import Document
from service.pages import foresight
from service.pages.job import address
from service.timeline_words import sentence

BATCH_KEYS = ("global_batch", "micro_batch", "noise_scale", "useful_tokens", "samples_per_s", "lr")
_WIDTH, _HEIGHT, _ROOM = 1000.0, 100.0, 4.0


def batch_view(job: Document, found: Document, rows: Sequence[Document]) -> dict[str, Any]:
    """The batch in force, each worker's part of it and its load, what other batches would bring, and why it is so."""
    observed, spec = job.get("observed") or {}, job["spec"]
    members = batching.members(observed)
    most = max((w.get("part") or 0 for w in members), default=0)
    noise = batching.newest(found["points"], "noise_scale")
    is_by_length = batching.newest(found["points"], "useful_tokens") is not None  # passes then are of unlike sizes
    told = observed.get("forecast")
    return {
        "sentence": batching.in_words(spec, observed),
        "facts": batching.facts(spec, observed, found["points"], foresight.present(told) if members else "–"),
        "workers": [
            {
                **w,
                "passes": None if is_by_length else batching.passes(w),
                "width": f"{100 * (w.get('part') or 0) / most:.1f}" if most else "0",
            }
            for w in members
        ],
        "loads": [_load(w) for w in members],
        "batches": foresight.batches_view(told, spec["batch"]["global_size"], noise) if members else None,
        "curves": _curves(spec["batch"]["global_size"], found["points"]),
        "weighed": batching.weighed_in_words(observed) if members else [],
        "reasons": [{"step": row["step"], "told": sentence(row)} for row in batching.reasons(rows)],
        "charts": [
            (words.metric(key), address(job["id"], "metrics", key=key)) for key in BATCH_KEYS if key in found["keys"]
        ],
    }


def _load(worker: Mapping[str, Any]) -> dict[str, Any]:
    """Compute, memory and bandwidth of one worker, each as a share of what it has; None where that is not known."""
    held = worker.get("footprint") or {}
    tokens = held.get("tokens")
    size, unit = (tokens, "token") if tokens else (worker.get("micro_size"), "sample")
    limit, peak, fixed = held.get("limit_bytes"), held.get("peak_bytes"), held.get("fixed_bytes")
    expected = None if fixed is None or not size else fixed + held["sample_bytes"] * size
    return {
        "rank": worker["rank"],
        "worker_id": worker["worker_id"],
        "compute": _bar(worker.get("busy_share")),
        "memory": _bar(peak / limit if peak and limit else None),
        "expected_at": None if expected is None or not limit else f"{_WIDTH * min(1.0, expected / limit):.1f}",
        "expected": expected,
        "size": None if not size else words.plural(size, unit),
        "line": "" if fixed is None else f"{words.size(max(0, fixed))} and {words.size(held['sample_bytes'])} a {unit}",
        "peak_bytes": peak or worker.get("memory_bytes") or None,
        "limit_bytes": limit,
        "wire": _bar(worker.get("wire_share")),
        "wire_bytes_per_s": worker.get("wire_bytes_per_s"),
    }


def _bar(share: float | None) -> dict[str, Any] | None:
    return None if share is None else {"share": share, "width": f"{_WIDTH * min(1.0, max(0.0, share)):.1f}"}


def _curves(asked: int, points: Sequence[Document]) -> list[dict[str, Any]]:
    """The noise scale, and what a sample is worth by it, over the job's steps; empty before two were measured."""
    told = [(p["step"], p["values"]["noise_scale"], p["values"].get("global_batch")) for p in _measured(points)]
    if len(told) < 2:
        return []
    worth = [
        (step, (noise + asked) / (noise + batch))
        for step, noise, batch in told
        if batch is not None and noise + batch > 0
    ]
    found = [_curve("Gradient noise scale", [(step, noise) for step, noise, _ in told], _samples)]
    if len(worth) > 1 and min(value for _, value in worth) < 1.0:
        found.append(_curve(f"What a sample is worth, of one at {words.count(asked)} a step", worth, words.percent))
    return found


def _measured(points: Sequence[Document]) -> list[Document]:
    return [p for p in points if p["values"].get("noise_scale") is not None]


def _samples(value: float | None) -> str:
    return f"{words.number(value)} samples"


def _curve(title: str, values: Sequence[tuple[int, float]], word: Any) -> dict[str, Any]:
    steps, heights = [step for step, _ in values], [value for _, value in values]
    top = max(heights) or 1.0
    span = max(1, steps[-1] - steps[0])
    places = [
        f"{_ROOM + (_WIDTH - 2 * _ROOM) * (step - steps[0]) / span:.1f} "
        f"{_HEIGHT - _ROOM - (_HEIGHT - 2 * _ROOM) * value / top:.1f}"
        for step, value in values
    ]
    return {
        "title": title,
        "path": "M" + "L".join(places),
        "top": word(top),
        "last": word(heights[-1]),
        "begin": f"step {words.count(steps[0])}",
        "end": f"step {words.count(steps[-1])}",
    }
