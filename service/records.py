"""What the store gives and takes: frozen rows without SQL, HTTP or Ray in them.

Times are Unix seconds (UTC), durations seconds, sizes bytes or samples as named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from service.states import ENDED_STATES, JobState
from workers.errors import Failure, Reason
from workers.run_settings import RunSettings
from workers.spec import JobSpec
from workers.status import RunGoal

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ListPart(Generic[T]):
    """Rows of a list from a place on, in its order.

    ``has_more``: others follow the last, also where these are fewer than were asked for; there is a last one then.
    """

    rows: list[T]
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a job waits or failed, in words for its owner; ``remedy`` is what to do about it."""

    summary: str
    details: tuple[str, ...] = ()
    remedy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How many workers the user wants.

    ``pinned`` is an exact number, None leaves the size to the service within ``min`` and ``max``.
    ``actor`` and ``reason`` tell who asked for it last and why.
    """

    min: int
    max: int
    pinned: int | None = None
    actor: str = "user"
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job as stored.

    Intent (written by the API): ``goal``, ``scale``, ``restart_after``, and (by a sweep) ``settings``, None where the
    spec's hold, ``saves``, the number of checkpoints asked for, and ``until``, the line in samples at which to stand
    still for a verdict. Everything else is observed.
    ``version`` grows with each transition and each change of intent, and guards updates; ``changed``
    grows with every write and orders all changes of the installation. ``attempt`` counts passages
    from QUEUED to STARTING (0: none yet), ``term`` controllers within the attempt (from 1).
    Checkpoints of attempts up to ``restart_after`` are not gone on from (a retry from the start).
    ``num_desired`` is the size that the service steers to. ``samples`` is the cursor of the state
    that trains, ``total_samples`` None until a worker has built the task. ``worker_s`` is worker
    seconds used up to ``observed_at``. ``observed`` is a small JSON view of the attempt for pages:
    ``{"detail", "num_pending", "size_reason", "batch_reasons", "exchange_reason", "racks": {...} | None,
    "plan": {...} | None, "workers": [...], "exchange": {...}, "counted": share of the
    samples drawn that count, "last_racks": [...]}``, of which the last is kept from one attempt to the next.
    """

    id: str
    name: str
    spec_json: str
    state: JobState
    reason: Reason | None
    version: int
    changed: int
    goal: RunGoal
    scale: Scale
    settings: RunSettings | None
    saves: int
    until: int | None
    restart_after: int
    attempt: int
    term: int
    num_current: int
    num_desired: int
    samples: int
    total_samples: int | None
    loss: float | None
    eval_values: Mapping[str, float]
    samples_per_s: float | None
    created_at: float
    queued_at: float
    started_at: float | None
    finished_at: float | None
    observed_at: float | None
    worker_s: float
    explanation: Explanation | None
    failure: Failure | None
    observed: Mapping[str, Any]

    @property
    def spec(self) -> JobSpec:
        """The resolved spec; parsed once and shared."""
        return _parsed(self.spec_json)

    @property
    def document(self) -> dict[str, Any]:
        """The resolved spec as a fresh JSON document."""
        value: dict[str, Any] = json.loads(self.spec_json)
        return value

    @property
    def most_workers(self) -> int:
        """What the job can make use of: each worker takes a part of the batch, which is at least one sample."""
        return min(self.scale.max, self.settings.global_batch if self.settings else self.spec.batch.global_size)

    @property
    def left_s(self) -> float | None:
        """Seconds to the last sample at the speed of the latest steps; None while one of both is not known."""
        if self.total_samples is None or not self.samples_per_s:
            return None
        counted_per_s = self.samples_per_s * float(self.observed.get("counted", 1.0))
        return max(0, self.total_samples - self.samples) / counted_per_s

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED_STATES

    @property
    def is_heard_of(self) -> bool:
        """Whether a controller has told of this attempt; until then there may be nothing but the intent."""
        return bool(self.observed.keys() - {"last_racks"})

    @property
    def etag(self) -> str:
        """``"v<version>.<changed>"``; the part before the point is what ``If-Match`` compares."""
        return f'"v{self.version}.{self.changed}"'


_PARSED: dict[str, JobSpec] = {}
MAX_PARSED = 1024


def spec_text(spec: JobSpec) -> str:
    """The text under which a spec is stored; what was parsed once is not parsed again to show the new job."""
    text = spec.model_dump_json()
    _remember(text, spec)
    return text


def _parsed(spec_json: str) -> JobSpec:
    spec = _PARSED.get(spec_json)
    if spec is None:
        spec = JobSpec.model_validate_json(spec_json)
        _remember(spec_json, spec)
    return spec


def _remember(text: str, spec: JobSpec) -> None:
    if len(_PARSED) >= MAX_PARSED:
        _PARSED.clear()
    _PARSED[text] = spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """What goes with a move to another state.

    ``explanation`` replaces the stored one (None clears it). ``failure`` is stored when given.
    """

    reason: Reason | None = None
    explanation: Explanation | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One state transition; ``seq`` counts from 1 within the job, ``source`` is None for the first."""

    seq: int
    time: float
    attempt: int
    source: JobState | None
    to: JobState
    reason: Reason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """A timeline row as stored; ``seq`` counts from 1 within the job over all attempts."""

    seq: int
    attempt: int
    changed: int
    key: str
    kind: str
    time: float
    step: int
    actor: str
    reason: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    cost_s: float | None
    steps_lost: int | None


@dataclass(frozen=True, slots=True)
class Point:
    """Telemetry of one committed round; ``step`` counts optimizer updates, skipped rounds do not."""

    round: int
    step: int
    time: float
    values: Mapping[str, float]
    changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """A stored piece of one worker's log, whole lines where it could be.

    ``position`` is its place in the job's log of all workers in order of arrival, in bytes.
    """

    position: int
    attempt: int
    worker_id: str
    rank: int | None
    time: float
    data: bytes
    changed: int

    @property
    def end(self) -> int:
        return self.position + len(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRow:
    """An uploaded archive; ``key`` is that of its bytes in storage."""

    id: str
    sha256: str
    key: str
    size_bytes: int
    files: int
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One machine of the cluster; ``total`` and ``free`` map ``cpus, gpus, memory_bytes`` to what it has.

    ``is_leaving``: the cluster gave notice that it takes the node away, at ``goes_at`` (Unix seconds) if it said so.
    ``rack`` is what its label says, empty without one.
    """

    node_id: str
    name: str
    is_alive: bool
    total: Mapping[str, float]
    free: Mapping[str, float]
    is_leaving: bool = False
    goes_at: float | None = None
    rack: str = ""

    @property
    def has_gpus(self) -> bool:
        """Whether it has any at all, in use or not."""
        return self.total.get("gpus", 0.0) > 0


class Duty(StrEnum):
    """What a node may be used for; in the last two it takes no workers, and loses those that it has."""

    ACTIVE = "active"
    DRAINED = "drained"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMark:
    """Somebody's latest word on a node: ``actor`` is ``admin`` or ``service``, ``since`` when it was said.

    ``name`` is the node's where it alone had it then, else empty.
    """

    node_id: str
    name: str = ""
    duty: Duty
    actor: str
    reason: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEvent:
    """Something that was decided about the cluster, as a sentence; ``seq`` counts from 1."""

    seq: int
    time: float
    node_id: str | None
    actor: str
    text: str


@dataclass(frozen=True, slots=True)
class Loss:
    """A job lost workers on a node, at this time in Unix seconds; with ``spared_elsewhere`` it kept some on others."""

    job_id: str
    node_id: str
    time: float
    spared_elsewhere: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """What the cluster's autoscaler is doing: nodes that are coming, and why others did not, in its words.

    ``is_infeasible``: it has no nodes for all that it was asked for, which ``refused`` are, by worker, as far as it
    tells. ``wanted_by``: the jobs it was asked for.
    """

    num_coming: int = 0
    failures: tuple[str, ...] = ()
    is_infeasible: bool = False
    refused: tuple[Mapping[str, float], ...] = ()
    wanted_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The cluster as the reconciler saw it; ``is_up`` False with ``error`` in words when Ray does not answer.

    ``autoscaling`` is None where the cluster has no autoscaler.
    """

    is_up: bool
    error: str | None = None
    address: str = ""
    ray_version: str = ""
    nodes: tuple[NodeView, ...] = ()
    autoscaling: Autoscaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCluster:
    """The last ``ClusterView``, when it was written and by which change."""

    view: ClusterView
    observed_at: float
    changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs a list shows; None and empty mean all.

    ``labels`` must all match; ``search`` is the beginning of an id or a part of a name.
    """

    states: frozenset[JobState] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    search: str | None = None
