"""Why a job's batch is what it is: global batch, parts, forward passes, noise, in words and figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.documents import Document
from service.words import count, duration, number, percent, plural
from workers.status import Phase

ACTORS = frozenset({"goodput", "shares", "micro_size", "loaders"})
"""Who changes a batch by itself."""

MUCH_WAITING = 0.2
"""The share of a step from which on waiting for data is told as something to mend."""

LONG_READING_S = 5.0
"""Of one micro-batch; from then on it is told what is read."""

_NUM_REASONS = 4


def in_words(spec: Mapping[str, Any], observed: Mapping[str, Any]) -> str | None:
    """One sentence on the batch that is in force; None while nothing trains."""
    plan, workers = observed.get("plan"), members(observed)
    if not plan or not workers:
        return None
    batch = int(plan["global_batch"])
    asked = spec["batch"]["global_size"]
    origin = "as asked for" if batch == asked else f"where {asked} were asked for"
    told = f"A step has {count(batch)} samples, {origin}, on {plural(len(workers), 'worker')}"
    parts = [w.get("part") for w in workers]
    if len(workers) > 1 and all(parts):
        told += f" ({', '.join(str(part) for part in parts)})"
    sizes = {w["micro_size"] for w in workers if w.get("micro_size")}
    tokens = [most for w in workers if (most := (w.get("footprint") or {}).get("tokens"))]
    if tokens:
        told += f", in forward passes by length, of up to {count(max(tokens))} tokens as seen lately"
    elif sizes and spec["batch"].get("max_tokens") is None:
        told += f", in forward passes of {' and '.join(str(size) for size in sorted(sizes))}"
    if spec["batch"].get("lr_rule") == "adascale":
        told += f", and counts as {count(round(batch * observed.get('counted', 1.0)))} by adascale"
    return f"{told}."


def weighed_in_words(observed: Mapping[str, Any]) -> list[str]:
    """Why batch and parts stay as they are, as was found when they were looked at last."""
    return list(observed.get("batch_reasons") or ())


def waiting_in_words(observed: Mapping[str, Any]) -> str | None:
    """What workers wait for data, and what helps, where that is a large part of a step; None where it is not."""
    waits = {w["worker_id"]: w.get("data_share") or 0.0 for w in members(observed)}
    if not waits or (most := max(waits.values())) < MUCH_WAITING:
        return None
    worker_id = max(waits, key=lambda w: waits[w])
    return (
        f"Waiting for data takes {percent(most)} of a step (worker {worker_id}); it helps to make a sample cheaper to "
        "read (prepared once, on a disk of the node), and to let processes read ahead: give workers more "
        "`resources.cpus` and memory, and see that the dataset can be pickled."
    )


def reading_in_words(observed: Mapping[str, Any]) -> str | None:
    """What the worker reads that has been reading longest, where that is long; None where it is not."""
    reads = [w for w in members(observed) if w["phase"] == Phase.DATA and w["phase_age_s"] > LONG_READING_S]
    if not reads:
        return None
    slowest = max(reads, key=lambda w: w["phase_age_s"])
    what = slowest.get("reading") or "its data"
    return (
        f"Worker {slowest['worker_id']} has been reading {what} for {duration(slowest['phase_age_s'])}; it is ended "
        "where that takes longer than the setting data_s of the service."
    )


def members(observed: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The workers that train, by rank."""
    return sorted((w for w in observed.get("workers") or () if w.get("rank") is not None), key=lambda w: w["rank"])


def passes(worker: Mapping[str, Any]) -> int | None:
    """Forward passes of a worker's part, None while not known."""
    part, size = worker.get("part"), worker.get("micro_size")
    return -(-part // size) if part and size else None


def facts(
    spec: Mapping[str, Any], observed: Mapping[str, Any], points: Sequence[Document], modelled: str = "–"
) -> list[tuple[str, str]]:
    """What is known of the batch by now, as names and values; ``modelled`` is the throughput that was foreseen."""
    plan = observed.get("plan") or {}
    batch, wanted = plan.get("global_batch"), spec["batch"]
    adapts = wanted.get("adapt") == "goodput"
    bound = f", up to {count(wanted['max_global_size'])}" if wanted.get("max_global_size") else ""
    rows = [
        ("Global batch", f"{count(batch)} samples a step"),
        ("Asked for", f"{count(wanted['global_size'])}, {'adapting by goodput' + bound if adapts else 'fixed'}"),
    ]
    noise, tokens, speed = (newest(points, key) for key in ("noise_scale", "useful_tokens", "samples_per_s"))
    rows.append(("Throughput", f"{number(speed)} samples a second" if speed is not None else "–"))
    rows.append(("Throughput modelled", modelled))
    if noise is not None:
        rows.append(("Gradient noise scale", f"{number(noise)} samples"))
        if batch:
            worth = (noise + wanted["global_size"]) / (noise + batch) if noise + batch else 1.0
            rows.append(("A sample is worth", f"{percent(worth)} of one at {count(wanted['global_size'])} a step"))
    if tokens is not None:
        rows.append(("Useful tokens", percent(tokens)))
    return rows


def reasons(rows: Sequence[Document]) -> list[Document]:
    """The newest timeline rows that tell of the batch, newest first."""
    found = [row for row in rows if row["actor"] in ACTORS or row["kind"] == "batch"]
    return found[::-1][:_NUM_REASONS]


def newest(points: Sequence[Document], key: str) -> float | None:
    """The last value that was told under a key."""
    return next((p["values"][key] for p in reversed(points) if p["values"].get(key) is not None), None)
