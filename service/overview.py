"""The cluster as users see it: what the reconciler saw last, and what runs and waits according to the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from service.documents import Document, desired_workers
from service.records import JobRow, NodeView, StoredCluster
from service.states import PLACED_STATES, JobState
from service.store.observed import ObservedStore
from service.store.telemetry import TelemetryStore
from service.times import rfc3339

STALE_S = 30.0
RESOURCES = ("cpus", "gpus", "memory_bytes")


class Overview:
    """Reads only; works while the cluster is down."""

    def __init__(self, telemetry: TelemetryStore, observed: ObservedStore, clock: Callable[[], float]) -> None:
        self._telemetry = telemetry
        self._observed = observed
        self._clock = clock

    async def cluster(self) -> Document:
        """See ``cluster_document``."""
        return cluster_document(await self._telemetry.cluster(), await self._observed.live_jobs(), self._clock())


def cluster_document(stored: StoredCluster | None, jobs: Sequence[JobRow], now_s: float) -> Document:
    """``{is_up, is_stale, error, observed_at, ray, resources, nodes, demand}``.

    A node: ``{id, name, is_alive, total, free, workers: [{job_id, job_name, worker_id, rank, pid, phase}]}``.
    ``demand`` is what jobs want and do not have: ``[{job_id, name, state, workers, cpus, gpus, since}]``.
    """
    view = None if stored is None else stored.view
    nodes = () if view is None else view.nodes
    is_stale = stored is None or now_s - stored.observed_at > STALE_S
    return {
        "is_up": view is not None and view.is_up and not is_stale,
        "is_stale": is_stale,
        "error": _error(stored, is_stale=is_stale),
        "observed_at": None if stored is None else rfc3339(stored.observed_at),
        "ray": {"address": view.address if view else "", "version": view.ray_version if view else ""},
        "resources": _resources(nodes),
        "nodes": [_node(node, jobs) for node in nodes],
        "demand": [row for job in jobs if (row := _demand(job)) is not None],
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


def _node(node: NodeView, jobs: Sequence[JobRow]) -> Document:
    return {
        "id": node.node_id,
        "name": node.name,
        "is_alive": node.is_alive,
        "total": {key: node.total.get(key, 0.0) for key in RESOURCES},
        "free": {key: node.free.get(key, 0.0) for key in RESOURCES},
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
        "since": rfc3339(job.queued_at),
    }
