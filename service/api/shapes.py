"""The documents as types, for ``/openapi.json`` and the tests; use cases build them as plain dicts."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from service.records import Duty
from service.schedule_records import Outcome, ScheduleState
from service.schedule_spec import ScheduleSpec
from service.states import JobState
from service.targets import Kind
from workers.errors import Reason
from workers.plan import TimelineKind
from workers.spec import JobSpec


class Shape(BaseModel):
    """Nothing besides what is named."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class FieldFault(Shape):
    """``pointer`` is a JSON Pointer."""

    pointer: str
    detail: str


class ProblemShape(Shape):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[FieldFault]
    request_id: str


class Progress(Shape):
    """``step`` is samples over the global batch of the spec; ``eval`` the latest evaluation."""

    step: int
    steps: int | None
    samples: int
    loss: float | None
    eval: dict[str, float]
    samples_per_s: float | None
    eta_s: float | None


class Workers(Shape):
    """The elastic range, how many train, how many are wanted."""

    min: int
    max: int
    current: int
    desired: int


class CostShape(Shape):
    """``amount`` is null without prices."""

    worker_s: float
    amount: float | None
    currency: str


class Job(Shape):
    """A job."""

    id: str
    name: str
    state: JobState
    reason: Reason | None
    spec: JobSpec
    progress: Progress
    workers: Workers
    attempt: int
    created_at: str
    started_at: str | None
    finished_at: str | None
    cost: CostShape
    etag: str


class JobList(Shape):
    """One page, newest first."""

    jobs: list[Job]
    next_page_token: str | None


class Schedule(Shape):
    """A schedule; ``next_time`` is the nominal one."""

    id: str
    name: str
    state: ScheduleState
    reason: str | None
    spec: ScheduleSpec
    next_time: str | None
    failures_in_a_row: int
    created_at: str
    etag: str


class ScheduleList(Shape):
    """One page, newest first."""

    schedules: list[Schedule]
    next_page_token: str | None


class ScheduleRun(Shape):
    """What became of one nominal time; ``child_state`` is null where the child is not there (any more)."""

    nominal_time: str
    fired_at: str
    outcome: Outcome
    kind: Kind
    child_id: str | None
    child_state: str | None
    reason: str | None


class ScheduleRuns(Shape):
    """One page, the latest nominal time first."""

    runs: list[ScheduleRun]
    next_page_token: str | None


class UpcomingTimes(Shape):
    """``notices`` tell in words what changes of the clocks do to them."""

    times: list[str]
    notices: list[str]


class Bundle(Shape):
    """An uploaded archive."""

    id: str
    sha256: str
    size_bytes: int
    files: int


class Point(Shape):
    """Telemetry of one step."""

    step: int
    time: str
    values: dict[str, float]


class Metrics(Shape):
    """Telemetry, downsampled."""

    keys: list[str]
    points: list[Point]


class TimelineItem(Shape):
    """What changed while the job ran."""

    seq: int
    step: int
    time: str
    kind: TimelineKind
    actor: str
    reason: str
    before: dict[str, Any]
    after: dict[str, Any]
    cost_s: float | None
    steps_lost: int | None


class Timeline(Shape):
    """Oldest first."""

    timeline: list[TimelineItem]


class Event(Shape):
    """A state transition."""

    seq: int
    time: str
    attempt: int
    source: JobState | None = Field(alias="from")
    to: JobState
    reason: Reason | None


class Events(Shape):
    """Oldest first."""

    events: list[Event]


class Checkpoint(Shape):
    """A complete checkpoint."""

    step: int
    size_bytes: int
    metric: float | None
    final: bool
    created_at: str


class Checkpoints(Shape):
    """Oldest first."""

    checkpoints: list[Checkpoint]


class OutputFile(Shape):
    """A file that the code wrote."""

    path: str
    size_bytes: int
    modified_at: str


class OutputFiles(Shape):
    """By path."""

    files: list[OutputFile]


class ExplanationShape(Shape):
    """Why it waits or failed."""

    summary: str
    details: list[str]
    remedy: str | None


class ReportSection(Shape):
    """A change and what it did: medians of samples a second, the gain in progress, and how sure that is.

    ``gain`` is the ratio of the two; where the batch follows the gradient noise, times what a sample is worth.
    ``expected`` is the gain that was predicted. What is null could not be measured.
    """

    name: str
    kind: str
    step: int
    actor: str
    before: float | None
    after: float | None
    gain: float | None
    low: float | None
    high: float | None
    num_measured: int
    expected: float | None
    evidence: str


class Report(Shape):
    """What each optimisation did to a job, oldest first."""

    sections: list[ReportSection]


class Difference(Shape):
    """A leaf of the specs that is not the same in all jobs; ``values`` by job id."""

    path: str
    values: dict[str, Any]


class Series(Shape):
    """One job's telemetry."""

    job_id: str
    name: str
    points: list[Point]


class Comparison(Shape):
    """Jobs side by side."""

    keys: list[str]
    differences: list[Difference]
    series: list[Series]


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


class Node(Shape):
    """A machine."""

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
    workers: list[NodeWorker]


class Demand(Shape):
    """Workers that a job wants and does not have."""

    job_id: str
    name: str
    state: JobState
    workers: int
    cpus: float
    gpus: float
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


class Version(Shape):
    """What answers."""

    version: str
    api: str
