"""Who is placed next: first in, first out. Pure; fair queueing can replace it behind the same functions.

Own bookkeeping comes before what Ray says is free: that is up to a tenth of a second old, and knows
nothing of workers that were granted and are not there yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from service.records import Explanation, JobRow, NodeView
from workers.spec import Resources

KINDS = ("cpus", "gpus", "memory_bytes")
EPSILON = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A queued job: it can start with ``min`` workers; ``pinned`` is the user's exact wish."""

    job_id: str
    need: Mapping[str, float]
    min: int
    max: int
    pinned: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A placed job: ``num_workers`` were granted, of which ``placed`` counts those that are there, by node."""

    job_id: str
    need: Mapping[str, float]
    num_workers: int
    max: int
    is_pinned: bool = False
    placed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Grant:
    """A job may have this many workers from now on."""

    job_id: str
    num_workers: int


def waiting(job: JobRow) -> Waiting:
    """A queued row, for ``admit``."""
    scale = job.scale
    return Waiting(
        job_id=job.id, need=_need(job.spec.resources), min=scale.min, max=job.most_workers, pinned=scale.pinned
    )


def running(job: JobRow, placed: Mapping[str, int]) -> Running:
    """A placed row, for ``admit`` and ``grow``; ``placed`` is from the latest snapshot of its controller."""
    return Running(
        job_id=job.id,
        need=_need(job.spec.resources),
        num_workers=max(job.num_desired, sum(placed.values())),
        max=job.most_workers,
        is_pinned=job.scale.pinned is not None,
        placed=placed,
    )


def admit(waiting: Sequence[Waiting], running: Sequence[Running], nodes: Sequence[NodeView]) -> list[Grant]:
    """Which of the waiting (oldest first) start now, and with how many workers: what is free, up to their max.

    Nobody overtakes; only a job that would not even fit into the empty cluster holds nobody up. A
    pinned job is granted its number as soon as its minimum fits: the rest comes when there is room.
    """
    free = _free(running, nodes)
    empty = [dict(node.total) for node in nodes if node.is_alive]
    grants = []
    for job in waiting:
        if _fit(job.need, empty, job.min) < job.min:
            continue
        if _fit(job.need, free, job.min) < job.min:
            break
        granted = _take(job.need, free, job.pinned or job.max)
        grants.append(Grant(job.job_id, job.pinned or granted))
    return grants


def grow(running: Sequence[Running], nodes: Sequence[NodeView]) -> list[Grant]:
    """What running jobs may have besides, oldest first, while nobody waits; pinned ones stay as they are."""
    free = _free(running, nodes)
    grants = []
    for job in running:
        more = 0 if job.is_pinned else _take(job.need, free, job.max - job.num_workers)
        if more > 0:
            grants.append(Grant(job.job_id, job.num_workers + more))
    return grants


def explain(job: Waiting, nodes: Sequence[NodeView]) -> Explanation | None:
    """Why a job waits where it is not the queue alone: it would not fit into the empty cluster."""
    alive = [node for node in nodes if node.is_alive]
    fits = _fit(job.need, [dict(node.total) for node in alive], job.min)
    if fits >= job.min:
        return None
    need = ", ".join(_amount(kind, job.need[kind]) for kind in KINDS if job.need.get(kind))
    has = tuple(
        f"Node {node.name} has {', '.join(_amount(kind, node.total.get(kind, 0.0)) for kind in KINDS)} in all."
        for node in alive
    )
    return Explanation(
        summary=f"It can never start on this cluster: of at least {job.min} workers with {need} each, {fits} fit.",
        details=has,
        remedy="Add machines to the cluster, or submit it anew with lower `resources` or `workers.min`.",
    )


def _need(resources: Resources) -> dict[str, float]:
    return {"cpus": resources.cpus, "gpus": resources.gpus, "memory_bytes": float(resources.memory_bytes or 0)}


def _free(running: Sequence[Running], nodes: Sequence[NodeView]) -> list[dict[str, float]]:
    """What each node has left after all that was granted, whether it is there already or not."""
    by_node = {node.node_id: node for node in nodes if node.is_alive}
    ours = {node_id: dict.fromkeys(KINDS, 0.0) for node_id in by_node}
    for job in running:
        for node_id, count in job.placed.items():
            for kind in KINDS if node_id in ours else ():
                ours[node_id][kind] += count * job.need.get(kind, 0.0)
    # The smaller of both views: Ray knows of others' use, we know what was granted just now.
    free = [
        {k: min(node.free.get(k, 0.0), node.total.get(k, 0.0) - ours[node_id][k]) for k in KINDS}
        for node_id, node in by_node.items()
    ]
    for job in sorted(running, key=lambda j: -j.need.get("cpus", 0.0)):
        coming = job.num_workers - sum(job.placed.values())
        left = coming - _take(job.need, free, coming)
        if left > 0 and free:
            # What finds no room yet has a claim on the next that there is.
            roomiest = max(free, key=lambda node: node["cpus"])
            for kind in KINDS:
                roomiest[kind] -= left * job.need.get(kind, 0.0)
    return free


def _take(need: Mapping[str, float], free: Sequence[dict[str, float]], count: int) -> int:
    """Take room for up to ``count`` workers from ``free``; how many found one."""
    taken = 0
    for node in free:
        while taken < count and all(need.get(kind, 0.0) <= node.get(kind, 0.0) + EPSILON for kind in KINDS):
            for kind in KINDS:
                node[kind] = node.get(kind, 0.0) - need.get(kind, 0.0)
            taken += 1
    return taken


def _fit(need: Mapping[str, float], free: Sequence[Mapping[str, float]], count: int) -> int:
    return _take(need, [dict(node) for node in free], count)


def _amount(kind: str, value: float) -> str:
    if kind == "memory_bytes":
        return f"{value / 2**30:.3g} GiB of memory"
    return f"{value:g} {'CPU' if kind == 'cpus' else 'GPU'}"
