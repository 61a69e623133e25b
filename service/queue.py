"""Who is placed next, and what the placed may have or must give back: first in, first out. Pure.

Fair queueing can replace it behind the same functions. It offers, and takes back for those who wait; which
of it a job takes is the job's to ask for, and what it must give back is not.

Own bookkeeping comes before what Ray says is free: that is up to a tenth of a second old (on our own Ray a fiftieth),
and knows nothing of workers that were granted and are not there yet.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from service.records import Explanation, JobRow, NodeView
from service.room import KINDS, Amounts, Need, Place, Room, empty, fit, free_now, in_words, need_of, take
from service.words import plural
from workers.status import AvoidedNode, RunGoal

_NONE: Mapping[str, Amounts] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A queued job: it can start with ``min`` workers; ``pinned`` is the user's exact wish."""

    job_id: str
    need: Need
    min: int
    max: int
    pinned: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A placed job: ``num_workers`` were granted; ``places`` are the nodes of those that are there, by rank.

    ``num_asked`` is the size that it would have; ``is_leaving``: all of it comes free soon. Whoever must leave
    is the last by rank, and before that whoever is not there yet. ``left_s`` are the seconds to its end at its
    present speed, infinite while unknown.
    """

    job_id: str
    need: Need
    num_workers: int
    min: int
    max: int
    num_asked: int
    is_pinned: bool = False
    is_leaving: bool = False
    places: Sequence[str] = ()
    left_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Grant:
    """A job may have this many workers from now on; ``reason`` tells why where it is fewer than before."""

    job_id: str
    num_workers: int
    reason: str = ""


def waiting(job: JobRow) -> Waiting:
    """A queued row, for ``admit``."""
    scale = job.scale
    return Waiting(
        job_id=job.id, need=need_of(job.spec.resources), min=scale.min, max=job.most_workers, pinned=scale.pinned
    )


def running(job: JobRow, places: Sequence[str] = (), num_asked: int | None = None) -> Running:
    """A placed row; ``places`` and ``num_asked`` (None: not heard yet) are from its controller's latest snapshot."""
    granted = wanted_workers(job)
    return Running(
        job_id=job.id,
        need=need_of(job.spec.resources),
        num_workers=granted,
        min=job.scale.min,
        max=job.most_workers,
        num_asked=granted if num_asked is None else num_asked,
        is_pinned=job.scale.pinned is not None,
        is_leaving=job.goal is not RunGoal.RUN,
        places=places,
        left_s=math.inf if job.left_s is None else job.left_s,
    )


def wanted_workers(job: JobRow) -> int:
    """The size to steer to: the user's number, else what was granted, within the range."""
    scale = job.scale
    return scale.pinned if scale.pinned is not None else max(scale.min, min(job.num_desired, scale.max))


def admit(
    waiting: Sequence[Waiting],
    running: Sequence[Running],
    nodes: Sequence[NodeView],
    others: Mapping[str, Amounts] | None = None,
) -> list[Grant]:
    """Which of the waiting (oldest first) start now, and with how many workers: what is free, up to their max.

    Nobody overtakes; only a job that would not even fit into the empty cluster holds nobody up. A
    pinned job is granted its number as soon as its minimum fits: the rest comes when there is room.
    ``others`` as of ``held_by_others``.
    """
    free = _free(running, nodes, others=others)
    grants = []
    for job in waiting:
        if fit(job.need, empty(nodes), job.min) < job.min:
            continue
        if fit(job.need, free, job.min) < job.min:
            break
        granted = len(take(job.need, free, job.pinned or job.max))
        grants.append(Grant(job.job_id, job.pinned or granted))
    return grants


def adjust(running: Sequence[Running], nodes: Sequence[NodeView], *, may_grow: bool) -> list[Grant]:
    """The sizes that running jobs asked for, oldest first; larger ones as far as there is room and nobody waits."""
    free = _free(running, nodes) if may_grow else []
    grants = []
    for job in running:
        wish = job.num_workers if job.is_pinned else max(job.min, min(job.num_asked, job.max))
        size = min(wish, job.num_workers) + len(take(job.need, free, wish - job.num_workers))
        if size != job.num_workers:
            grants.append(Grant(job.job_id, size))
    return grants


def offers(running: Sequence[Running], nodes: Sequence[NodeView]) -> dict[str, int]:
    """The most that each job could have now if it alone asked; pinned ones have nothing to ask for."""
    free = _free(running, nodes)
    return {
        job.job_id: job.num_workers + fit(job.need, free, job.max - job.num_workers)
        for job in running
        if not job.is_pinned
    }


def reclaim(waiting: Sequence[Waiting], running: Sequence[Running], nodes: Sequence[NodeView]) -> list[Grant]:
    """What placed jobs must give back so that the job that has waited longest can start; as little as serves.

    One worker at a time from whoever has most above its min, of equals the youngest; whoever need not, since
    its nodes do not help, keeps what it has. Nothing where even all of that would not do, or where what is on
    its way back does.
    """
    first = next((job for job in waiting if fit(job.need, empty(nodes), job.min) >= job.min), None)
    if first is None:
        return []
    sizes = {job.job_id: 0 if job.is_leaving else job.num_workers for job in running}

    def serves(sizes: Mapping[str, int]) -> bool:
        return fit(first.need, free_at(running, nodes, sizes), first.min) >= first.min

    while not serves(sizes):
        able = [job for job in reversed(running) if not job.is_pinned and sizes[job.job_id] > job.min]
        if not able:
            return []
        sizes[max(able, key=lambda job: sizes[job.job_id] - job.min).job_id] -= 1
    why = f"made room for job {first.job_id}, which waits"
    grants = []
    for job in (job for job in running if not job.is_leaving):
        while sizes[job.job_id] < job.num_workers and serves({**sizes, job.job_id: sizes[job.job_id] + 1}):
            sizes[job.job_id] += 1
        if sizes[job.job_id] < job.num_workers:
            grants.append(Grant(job.job_id, sizes[job.job_id], why))
    return grants


def free_at(running: Sequence[Running], nodes: Sequence[NodeView], sizes: Mapping[str, int]) -> list[Room]:
    """What each node has left once every job has come down to its size here."""
    going = [replace(job, places=job.places[sizes[job.job_id] :]) for job in running]
    smaller = [replace(job, num_workers=(n := sizes[job.job_id]), places=job.places[:n]) for job in running]
    return _free(smaller, nodes, _placed(going, nodes))


def explain(
    job: Waiting, nodes: Sequence[NodeView], shunned: Sequence[AvoidedNode] = (), shut: Collection[str] = ()
) -> Explanation | None:
    """Why a job waits where it is not the queue alone: it would not fit into what is used of the empty cluster.

    ``nodes`` are all; on the ``shunned`` no worker shall be now, on those ``shut`` by a word that can be taken back.
    """
    alive = [node for node in nodes if node.is_alive]
    ids = {node.node_id for node in shunned}
    in_use = [node for node in alive if node.node_id not in ids]
    fits = fit(job.need, empty(in_use), job.min)
    if fits >= job.min:
        return None
    has = (
        f"Node {node.name} has {', '.join(in_words(kind, node.total.get(kind, 0.0)) for kind in KINDS)} in all."
        for node in in_use
    )
    where, remedy = "It can never start on this cluster", "Add machines to the cluster"
    if fit(job.need, empty(alive), job.min) >= job.min:
        where = "It cannot start on the nodes that are in use now"
        could_be = [node for node in alive if node.node_id not in ids or (node.node_id in shut and not node.is_leaving)]
        if fit(job.need, empty(could_be), job.min) >= job.min:
            remedy = "Let the other nodes be used again (`concertina node uncordon NODE`), add machines to the cluster"
    return Explanation(
        summary=f"{where}: of at least {plural(job.min, 'worker')} with {job.need.in_words} each, {fits} fit.",
        details=(*has, *(f"Not in use: {node.reason}." for node in shunned)),
        remedy=f"{remedy}, or submit it anew with lower `resources` or `workers.min`.",
    )


def earliest_start_s(line: Sequence[Waiting], running: Sequence[Running], nodes: Sequence[NodeView]) -> float | None:
    """In how many seconds the last in ``line`` can start if those who train go on as now, and end as they tell.

    ``line`` are all that wait, from the first on; each takes its least, and keeps it, as nobody knows yet how long it
    trains. 0 where there is room now, None where it hangs on somebody whose end is unknown.
    """
    least = [job for job in line if fit(job.need, empty(nodes), job.min) >= job.min]
    if not least or least[-1] is not line[-1]:
        return None
    ends = {job.job_id: 0.0 if job.is_leaving else job.left_s for job in running}
    for at_s in sorted({0.0, *(end_s for end_s in ends.values() if math.isfinite(end_s))}):
        sizes = {job.job_id: job.num_workers if ends[job.job_id] > at_s else 0 for job in running}
        room = free_at(running, nodes, sizes)
        if all(len(take(job.need, room, job.min)) == job.min for job in least):
            return at_s
    return None


def has_room(job: Waiting, nodes: Sequence[NodeView]) -> bool:
    """Whether a worker of the job would fit into what is free now."""
    return fit(job.need, free_now(nodes), 1) > 0


def held_by_others(
    before: Mapping[str, Amounts], running: Sequence[Running], nodes: Sequence[NodeView]
) -> Mapping[str, Amounts]:
    """What others than our jobs hold of each node, after what was known ``before``.

    Of workers that were granted and are not heard of yet nobody knows whether Ray counts them already, nor whether it
    still does of those that leave: that leaves a range, and what was known before is kept as far as it lies in it.
    """
    staying = [job for job in running if not job.is_leaving]
    ours = _placed(staying, nodes)
    unsure = {has_gpus: _unsure(running, Room(has_gpus, {})) for has_gpus in (True, False)}
    held = {}
    for node in (node for node in nodes if node.is_alive):
        coming = unsure[node.has_gpus]
        most = {k: node.total.get(k, 0.0) - node.free.get(k, 0.0) - ours[node.node_id][k] for k in KINDS}
        known = before.get(node.node_id, most)
        held[node.node_id] = {k: max(0.0, min(most[k], max(known[k], most[k] - coming[k]))) for k in KINDS}
    return held


def _unsure(running: Sequence[Running], place: Place) -> dict[str, float]:
    """The most that a node like this may hold of workers of which nobody knows whether Ray counts them."""
    counts = [(job, job.num_workers if job.is_leaving else job.num_workers - len(job.places)) for job in running]
    return {k: sum(max(0, count) * job.need.on(place).get(k, 0.0) for job, count in counts) for k in KINDS}


def _placed(running: Sequence[Running], nodes: Sequence[NodeView]) -> dict[str, dict[str, float]]:
    """What workers that are there hold of each node."""
    alive = {node.node_id: node for node in nodes if node.is_alive}
    ours = {node_id: dict.fromkeys(KINDS, 0.0) for node_id in alive}
    for job in running:
        for node_id in (node_id for node_id in job.places if node_id in alive):
            taken = job.need.on(alive[node_id])
            for kind in KINDS:
                ours[node_id][kind] += taken.get(kind, 0.0)
    return ours


def _free(
    running: Sequence[Running],
    nodes: Sequence[NodeView],
    leaving: Mapping[str, Amounts] = _NONE,
    others: Mapping[str, Amounts] | None = None,
) -> list[Room]:
    """What each node has left after all that was granted, whether it is there already or not.

    ``leaving`` is, by node, what is still in use and comes free. Where it is known what ``others`` hold, who is on
    its way is not counted twice, as what is no longer free and as what has still to come.
    """
    alive = [node for node in nodes if node.is_alive]
    ours = _placed(running, nodes)
    # The smaller of both views: Ray knows of others' use, we know what was granted just now.
    seen = [
        Room(node.has_gpus, {k: node.free.get(k, 0.0) + back.get(k, 0.0) for k in KINDS})
        for node in alive
        for back in (leaving.get(node.node_id, {}),)
    ]
    own = [
        Room(node.has_gpus, {k: node.total.get(k, 0.0) - ours[node.node_id][k] - theirs.get(k, 0.0) for k in KINDS})
        for node in alive
        for theirs in ((others or _NONE).get(node.node_id, {}),)
    ]
    if others is not None:
        return _least(seen, _after_claims(running, own))
    return _after_claims(running, _least(seen, own))


def _least(some: Sequence[Room], others: Sequence[Room]) -> list[Room]:
    return [
        Room(one.has_gpus, {k: min(one.left[k], other.left[k]) for k in KINDS})
        for one, other in zip(some, others, strict=True)
    ]


def _after_claims(running: Sequence[Running], free: list[Room]) -> list[Room]:
    """What is left of ``free`` once all have come who were granted and are not there yet."""
    for job in sorted(running, key=lambda job: -job.need.most_cpus):
        coming = job.num_workers - len(job.places)
        lacking = coming - len(take(job.need, free, coming))
        if lacking > 0 and free:
            # What finds no room yet has a claim on the next that there is.
            roomiest = max(free, key=lambda room: room.left["cpus"])
            roomiest.take(job.need.on(roomiest), lacking)
    return free
