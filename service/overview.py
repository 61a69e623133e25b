"""The cluster as users see it: what the reconciler saw last, and what runs and waits according to the store."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.avoidance import avoided, usable
from service.demand import sentences
from service.documents import Document, desired_workers
from service.racks import doubts
from service.records import ClusterEvent, ClusterView, Duty, JobRow, NodeMark, NodeView, StoredCluster
from service.sign_of_life import SignOfLife
from service.states import PLACED_STATES, JobState
from service.store.nodes import NodeStore
from service.store.observed import ObservedStore
from service.store.telemetry import TelemetryStore
from service.times import rfc3339

STALE_S = 30.0
MAX_EVENTS = 20
MAX_DEMAND = 100
RESOURCES = ("cpus", "gpus", "memory_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the cluster is for: ``jobs`` are the placed ones and the first in line, of ``num_queued`` who wait.

    ``names`` are by id those of the jobs that the autoscaler was asked for.
    """

    jobs: Sequence[JobRow]
    num_queued: int
    names: Mapping[str, str]


class Overview:
    """Reads only; works while the cluster is down. Nothing here reads more when more jobs wait."""

    def __init__(self, telemetry: TelemetryStore, observed: ObservedStore, nodes: NodeStore, seen: SignOfLife) -> None:
        self._telemetry = telemetry
        self._observed = observed
        self._nodes = nodes
        self._seen = seen

    async def cluster(self) -> Document:
        """See ``cluster_document``, with ``events``: what was decided of late, newest first."""
        stored = await self._telemetry.cluster()
        seen = None if stored is None else stored.view.autoscaling
        work = Work(
            jobs=await self._observed.live_jobs(MAX_DEMAND),
            num_queued=await self._observed.num_queued(),
            names=await self._names(() if seen is None else seen.wanted_by),
        )
        document = cluster_document(stored, work, self._health(stored), await self._nodes.node_marks())
        events = await self._nodes.cluster_events(MAX_EVENTS)
        return {**document, "events": [_event(event) for event in events]}

    async def health(self) -> Document:
        """See ``health_document``; reads one row, as every page asks for it."""
        return self._health(await self._telemetry.cluster())

    async def machines(self) -> Sequence[NodeView]:
        """The nodes that workers may be on, as they were seen last; none while the cluster is away."""
        stored = await self._telemetry.cluster()
        if stored is None or not self._health(stored)["is_up"]:
            return ()
        nodes = stored.view.nodes
        return usable(nodes, avoided(nodes, await self._nodes.node_marks()))

    def _health(self, stored: StoredCluster | None) -> Document:
        return health_document(stored, self._seen.age_s(None if stored is None else stored.observed_at))

    async def _names(self, job_ids: Collection[str]) -> Mapping[str, str]:
        return await self._observed.names(job_ids) if job_ids else {}


def health_document(stored: StoredCluster | None, age_s: float) -> Document:
    """``{is_up, is_stale, error, observed_at}``: whether the cluster answers, by what was seen of it last."""
    is_stale = stored is None or age_s > STALE_S
    return {
        "is_up": stored is not None and stored.view.is_up and not is_stale,
        "is_stale": is_stale,
        "error": _error(stored, is_stale=is_stale),
        "observed_at": None if stored is None else rfc3339(stored.observed_at),
    }


def cluster_document(
    stored: StoredCluster | None, work: Work, health: Document, marks: Mapping[str, NodeMark]
) -> Document:
    """``health_document`` with ``{ray, resources, nodes, demand, demand_left_out, autoscaling}``.

    A node: ``{id, name, is_alive, duty, duty_reason, duty_since, is_leaving, goes_at, total, free, rack, rack_doubts,
    workers}``, a worker there: ``{job_id, job_name, worker_id, rank, pid, phase}``, what a job's links say against the
    node's rack: ``{job_id, job_name, told}``.
    ``demand`` is what jobs want and do not have, longest first: ``[{job_id, name, state, workers, cpus, gpus,
    cpus_instead, since}]`` of MAX_DEMAND jobs, where ``cpus_instead`` is for all of the workers if they sit on nodes
    without GPUs, None if they may not; ``demand_left_out`` is how many more there are. ``autoscaling`` is what the
    autoscaler does about it, None without one: ``{nodes_coming, failures, is_infeasible, wanted_by, told}``.
    """
    view = None if stored is None else stored.view
    nodes = () if view is None else view.nodes
    demand = [row for job in work.jobs if (row := _demand(job)) is not None]
    num_unread = work.num_queued - sum(job.state is JobState.QUEUED for job in work.jobs)
    return {
        **health,
        "ray": {"address": view.address if view else "", "version": view.ray_version if view else ""},
        "resources": _resources(nodes),
        "nodes": [
            {**_node(node, marks.get(node.node_id), work.jobs), "rack_doubts": _rack_doubts(node, nodes, work.jobs)}
            for node in nodes
        ],
        "demand": demand[:MAX_DEMAND],
        # The count was read after the rows: jobs may have started in between.
        "demand_left_out": len(demand[MAX_DEMAND:]) + max(0, num_unread),
        "autoscaling": _autoscaling(view, work.names),
    }


def _error(stored: StoredCluster | None, *, is_stale: bool) -> str | None:
    if stored is None:
        return "the cluster has not been seen yet"
    if not stored.view.is_up:
        return stored.view.error or "the cluster does not answer"
    return "the reconciler has not told about the cluster for a while" if is_stale else None


def _resources(nodes: Sequence[NodeView]) -> Document:
    alive = [node for node in nodes if node.is_alive]
    return {
        key: {
            "total": sum(node.total.get(key, 0.0) for node in alive),
            "free": sum(node.free.get(key, 0.0) for node in alive),
        }
        for key in RESOURCES
    }


def _node(node: NodeView, mark: NodeMark | None, jobs: Sequence[JobRow]) -> Document:
    return {
        "id": node.node_id,
        "name": node.name,
        "is_alive": node.is_alive,
        "duty": mark.duty if mark else Duty.ACTIVE,
        "duty_reason": mark.reason if mark else "",
        "duty_since": rfc3339(mark.since) if mark else None,
        "is_leaving": node.is_leaving,
        "goes_at": None if node.goes_at is None else rfc3339(node.goes_at),
        "total": {key: node.total.get(key, 0.0) for key in RESOURCES},
        "free": {key: node.free.get(key, 0.0) for key in RESOURCES},
        "rack": node.rack,
        "workers": [
            {
                "job_id": job.id,
                "job_name": job.name,
                "worker_id": worker["worker_id"],
                "rank": worker["rank"],
                "pid": worker["pid"],
                "phase": worker["phase"],
            }
            for job in jobs
            for worker in _workers(job)
            if worker["node_id"] == node.node_id
        ],
    }


def _rack_doubts(node: NodeView, nodes: Sequence[NodeView], jobs: Sequence[JobRow]) -> list[Document]:
    names = {other.node_id: other.name for other in nodes}
    return [
        {"job_id": job.id, "job_name": job.name, "told": told}
        for job in jobs
        if job.state in PLACED_STATES
        for told in doubts(job.observed, node.node_id, names)
    ]


def _autoscaling(view: ClusterView | None, names: Mapping[str, str]) -> Document | None:
    seen = None if view is None else view.autoscaling
    if seen is None:
        return None
    return {
        "nodes_coming": seen.num_coming,
        "failures": list(seen.failures),
        "is_infeasible": seen.is_infeasible,
        "wanted_by": list(seen.wanted_by),
        "told": sentences(seen, names),
    }


def _event(event: ClusterEvent) -> Document:
    return {"time": rfc3339(event.time), "node_id": event.node_id, "actor": event.actor, "text": event.text}


def _workers(job: JobRow) -> Sequence[dict[str, Any]]:
    return job.observed.get("workers", ()) if job.state in PLACED_STATES else ()


def _demand(job: JobRow) -> Document | None:
    missing = desired_workers(job) - job.num_current
    if missing <= 0 or job.state in (JobState.PAUSING, JobState.CANCELLING):
        return None
    need = job.spec.resources
    return {
        "job_id": job.id,
        "name": job.name,
        "state": job.state,
        "workers": missing,
        "cpus": missing * need.cpus,
        "gpus": missing * need.gpus,
        "cpus_instead": None if need.cpus_instead is None else missing * need.cpus_instead,
        "since": rfc3339(job.queued_at),
    }
