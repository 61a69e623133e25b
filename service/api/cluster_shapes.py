"""The cluster's document as types, as ``shapes`` has the others."""

from __future__ import annotations

from service.api.shapes import Shape
from service.records import Duty
from service.states import JobState


class Amount(Shape):
    """Of one resource."""

    total: float
    free: float


class NodeWorker(Shape):
    """A worker on a node."""

    job_id: str
    job_name: str
    worker_id: str
    rank: int | None
    pid: int
    phase: str


class NodeDoubt(Shape):
    """What links of a job's workers say against a node's rack."""

    job_id: str
    job_name: str
    told: str


class Node(Shape):
    """A machine; ``rack`` is what its label says, empty without one."""

    id: str
    name: str
    is_alive: bool
    duty: Duty
    duty_reason: str
    duty_since: str | None
    is_leaving: bool
    goes_at: str | None
    total: dict[str, float]
    free: dict[str, float]
    rack: str
    rack_doubts: list[NodeDoubt]
    workers: list[NodeWorker]


class Demand(Shape):
    """Workers that a job wants and does not have.

    In all they need ``cpus`` and ``gpus``, or on nodes without GPUs ``cpus_instead``; null: they sit on none such.
    """

    job_id: str
    name: str
    state: JobState
    workers: int
    cpus: float
    gpus: float
    cpus_instead: float | None
    since: str


class Autoscaling(Shape):
    """What the cluster's autoscaler is doing; ``told`` says it in sentences."""

    nodes_coming: int
    failures: list[str]
    is_infeasible: bool
    wanted_by: list[str]
    told: list[str]


class Ray(Shape):
    """Where the cluster is."""

    address: str
    version: str


class ClusterEvent(Shape):
    """Something that was decided about the cluster."""

    time: str
    node_id: str | None
    actor: str
    text: str


class Cluster(Shape):
    """The cluster as it was seen last."""

    is_up: bool
    is_stale: bool
    error: str | None
    observed_at: str | None
    ray: Ray
    resources: dict[str, Amount]
    nodes: list[Node]
    demand: list[Demand]
    demand_left_out: int
    autoscaling: Autoscaling | None
    events: list[ClusterEvent]
