"""The cluster as its page shows it: nodes, what runs where, demand that is not met. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from service import words
from service.documents import Document
from service.records import Duty

NUM_HUES = 6
_RESOURCES = (("cpus", "CPUs"), ("gpus", "GPUs"), ("memory_bytes", "memory"))


def banner(health: Document) -> Mapping[str, Any]:
    """Whether Ray is away, for the line above every page."""
    return {"is_down": not health["is_up"], "seen_at": health["observed_at"], "error": health["error"]}


def cluster_view(cluster: Document) -> dict[str, Any]:
    """Nodes with their workers in cells, coloured by job."""
    nodes = [_node(node) for node in cluster["nodes"]]
    num_workers = sum(len(node["workers"]) for node in nodes)
    alive = sum(1 for node in nodes if node["is_alive"])
    return {
        "nodes": nodes,
        "observed_at": cluster.get("observed_at"),
        "headline": f"{words.plural(alive, 'node').capitalize()}, {words.plural(num_workers, 'worker')}."
        if nodes
        else "The cluster has not been seen yet.",
        "autoscaling": list((cluster.get("autoscaling") or {}).get("told") or ()),
        "demand": [_demand(d) for d in cluster.get("demand") or ()],
        "demand_left_out": int(cluster.get("demand_left_out") or 0),
        "events": list(cluster.get("events") or ()),
    }


def _node(node: Document) -> dict[str, Any]:
    total, free = node["total"], node["free"]
    resources = [
        {
            "word": word,
            "used": _amount(key, total[key] - free.get(key, 0)),
            "total": _amount(key, total[key]),
            "share": (total[key] - free.get(key, 0)) / total[key],
        }
        for key, word in _RESOURCES
        if total.get(key)
    ]
    return {
        "id": node["id"],
        "name": node.get("name") or node["id"][:8],
        "is_alive": node.get("is_alive", True),
        "duty": _duty(node),
        "rack": node.get("rack") or "",
        "rack_doubts": list(node.get("rack_doubts") or ()),
        "actions": _actions(node) if node.get("is_alive", True) else [],
        "resources": resources,
        "workers": [_worker(w) for w in sorted(node.get("workers") or (), key=_by_job)],
        "free_words": _free_words(node),
    }


def _duty(node: Document) -> str:
    """What a node is not used for, in words; empty for one in full use."""
    duty, reason = node.get("duty", Duty.ACTIVE), node.get("duty_reason")
    if duty != Duty.ACTIVE:
        return f"{duty}: {reason}" if reason else str(duty)
    return "is being taken away by the cluster" if node.get("is_leaving") else ""


def _actions(node: Document) -> list[dict[str, str]]:
    """What can be said of a node now; what empties it asks first."""
    name, duty = node.get("name") or node["id"][:8], node.get("duty", Duty.ACTIVE)
    lost = (
        f"{words.plural(len(node.get('workers') or ()), 'worker').capitalize()} there move to other nodes. Where there "
        "is no room, a job goes on with fewer, or saves and waits; no step is lost. It takes no new ones until it is "
        "used again."
    )
    asks = [
        {"verb": verb, "word": word, "do": f"{word} it", "ask": f"{word} node {name}?", "lost": lost, "style": "danger"}
        for verb, word, result in (("drain", "Drain", Duty.DRAINED), ("quarantine", "Quarantine", Duty.QUARANTINED))
        if duty != result
    ]
    back = {"verb": "uncordon", "word": "Use again", "do": "", "ask": "", "lost": "", "style": ""}
    return asks if duty == Duty.ACTIVE else [back, *asks]


def _free_words(node: Document) -> str:
    if not node.get("is_alive", True):
        return ""
    parts = [_free(node["free"][key], word) for key, word in _RESOURCES[:2] if node["free"].get(key)]
    return f"{' and '.join(parts)} free" if parts else "no CPU free"


def _free(amount: float, word: str) -> str:
    return f"{words.number(amount)} {word.removesuffix('s') if amount == 1 else word}"


def _by_job(worker: Document) -> tuple[str, int]:
    rank = worker.get("rank")
    return (worker["job_id"], -1 if rank is None else rank)


def _amount(key: str, value: float) -> str:
    return words.size(value) if key == "memory_bytes" else words.number(value)


def _worker(worker: Document) -> dict[str, Any]:
    rank = worker.get("rank")
    told = [f"worker {rank}" if rank is not None else "no rank yet", str(worker.get("phase") or "")]
    return {
        "job_id": worker["job_id"],
        "name": worker.get("job_name") or worker["job_id"],
        "detail": " · ".join(part for part in told if part),
        "hue": zlib.crc32(worker["job_id"].encode()) % NUM_HUES,
    }


def _demand(row: Document) -> dict[str, str]:
    missing = int(row.get("workers") or 0)
    return {
        "job_id": row["job_id"],
        "name": row.get("name") or row["job_id"],
        "text": f"lacks {words.plural(missing, 'worker')}",
    }
