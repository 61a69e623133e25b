"""The documents as types, for ``/openapi.json`` and the tests; use cases build them as plain dicts."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from service.schedule_records import Outcome, ScheduleState
from service.schedule_spec import ScheduleSpec
from service.states import JobState
from service.targets import Kind
from workers.errors import Reason
from workers.plan import TimelineKind
from workers.racks import FoundBy
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
    """``amount`` is null without prices.

    ``is_upper_bound``: it may have been less, as workers may have had CPUs instead of GPUs.
    """

    worker_s: float
    amount: float | None
    currency: str
    is_upper_bound: bool


class RackLink(Shape):
    """The median of such links; null where there is none, or nothing was measured."""

    bytes_per_s: float | None
    latency_s: float | None


class RackWorker(Shape):
    """``label`` is the rack of its node as labels say, ``rack`` the number of the one that it counts to."""

    worker_id: str
    rank: int
    rack: int
    label: str


class RackDispute(Shape):
    """Two workers of one label between two racks, or of two labels inside one."""

    worker_ids: list[str]
    node_ids: list[str]
    is_one_label: bool
    bytes_per_s: float
    latency_s: float | None
    told: str


class Racks(Shape):
    """Which workers of a group share a rack, and how links are inside racks and between them."""

    found_by: FoundBy
    told: str
    inside: RackLink
    across: RackLink
    workers: list[RackWorker]
    disputes: list[RackDispute]


class Job(Shape):
    """A job; ``racks`` is null where its group had no use for them."""

    id: str
    name: str
    state: JobState
    reason: Reason | None
    spec: JobSpec
    progress: Progress
    workers: Workers
    racks: Racks | None
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
    """What became of one nominal time; ``child_state`` is null where the child is not there (any more).

    ``child_lives`` also where a sweep has ended and its winner is compared.
    """

    nominal_time: str
    fired_at: str
    outcome: Outcome
    kind: Kind
    child_id: str | None
    child_state: str | None
    child_lives: bool
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


class Version(Shape):
    """What answers."""

    version: str
    api: str
