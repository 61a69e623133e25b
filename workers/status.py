"""What workers and controllers tell about themselves: frozen values that cross process borders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from workers.errors import Failure, Reason
from workers.measures import BuildInfo, Footprint, Forecast, LoaderChange, MicroChange, RankLoad, RankSpan
from workers.plan import Plan, PlanId, TimelineKind
from workers.racks import Topology
from workers.run_settings import RunSettings


class Phase(StrEnum):
    """Where a worker's training thread is. ``STOPPED``: it left the round and waits for a plan."""

    INSTALL = "install"
    BUILD = "build"
    READY = "ready"
    RENDEZVOUS = "rendezvous"
    SYNC = "sync"
    DATA = "data"
    COMPUTE = "compute"
    EXCHANGE = "exchange"
    COMMIT = "commit"
    EVAL = "eval"
    SAVE = "save"
    STOPPED = "stopped"
    HELD = "held"  # at the plan's line
    SAVED = "saved"
    DONE = "done"
    FAILED = "failed"


START_PHASES = frozenset({Phase.INSTALL, Phase.BUILD})
"""Before a worker is ready: dependencies first, then what the user's code builds."""

TRAINING_PHASES = frozenset(
    {
        *(Phase.RENDEZVOUS, Phase.SYNC, Phase.DATA, Phase.COMPUTE, Phase.EXCHANGE, Phase.COMMIT, Phase.EVAL),
        *(Phase.SAVE, Phase.HELD),
    }
)


class StopCause(StrEnum):
    """Why a worker left a round."""

    PEER = "peer"  # a collective or the rendezvous failed: somebody else went
    ABORTED = "aborted"  # the controller asked
    USER = "user"  # the user's code raised
    MEMORY = "memory"  # out of memory after the first bucket was launched
    REMOVED = "removed"  # the plan in force leaves this worker out
    DONOR = "donor"  # the state of another job, which the plan names, cannot be taken; its own is whole
    CHECKPOINT = "checkpoint"  # the checkpoint that the plan begins from cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """``generation`` is the one that was left; ``failure`` is set where user code or memory failed."""

    generation: int
    cause: StopCause
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One committed (or skipped) round; global values, the same on every rank.

    ``round`` counts commits from 1 and goes on over restores of its lineage; ``cursor`` is the samples
    drawn after it; ``time`` is Unix seconds at the commit; ``values`` holds telemetry keys of the
    contract (``loss``, ``step_s``, ``eval.accuracy``, ``user.NAME``, ...).
    ``is_skipped``: the loss was not finite, the samples were passed over and nothing was updated. ``is_trial``: on some
    rank a micro-batch or a way to read was on trial, so that its seconds tell little of the rounds to come.
    ``num_steps`` are its optimizer steps, ``num_passes`` forward passes of the rank that tells, 0 where it does not.
    ``tokens`` are those of its samples, 0 where they have no lengths.
    ``noise_bounds`` are what the ``noise_scale`` told with it is at least and at most, None while that is not known.
    """

    lineage: int
    round: int
    generation: int
    plan_id: PlanId
    cursor: int
    samples: int
    time: float
    values: Mapping[str, float]
    is_skipped: bool = False
    is_trial: bool = False
    num_passes: int = 0
    num_steps: int = 1
    tokens: float = 0.0
    noise_bounds: tuple[float, float] | None = None

    @property
    def key(self) -> tuple[int, int]:
        return (self.lineage, self.round)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """Bytes of one worker's log from ``offset`` on; ``rank`` is the rank it had, None before it had one."""

    worker_id: str
    offset: int
    rank: int | None
    time: float
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """A complete checkpoint in storage; ``path`` is its name among the job's checkpoints.

    ``size_bytes`` is what a restore reads; ``written_bytes`` of them this save wrote, the others earlier ones.
    ``held_s`` is how long training waited for it, ``reason`` why it was saved; ``settings``, ``saves`` and
    ``global_batch`` (0: not known) are those of the plan in force; of a batch on trial it is the one before.
    """

    path: str
    attempt: int
    lineage: int
    generation: int
    round: int
    step: int
    cursor: int
    size_bytes: int
    metric: float | None
    is_final: bool
    created_at: float
    held_s: float = 0.0
    written_bytes: int = 0
    reason: str = ""
    settings: int = 0
    saves: int = 0
    global_batch: int = 0

    @property
    def order(self) -> tuple[int, int, int, int]:
        """The newest checkpoint is the greatest by this."""
        return (self.attempt, self.lineage, self.round, self.generation)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSave:
    """A checkpoint that could not be written; ``path`` would have been its name, ``time`` is Unix seconds."""

    path: str
    step: int
    time: float
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Something that a worker no longer tells in full; ``what`` names it, ``reason`` tells the limit and the remedy."""

    what: str
    reason: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """One worker as it is now; the answer to ``poll``.

    ``seq`` grows with every answer, so that a late one is recognised and dropped. ``term`` is the
    highest term it has acknowledged. ``plan`` is in force, ``pending`` is held for agreement,
    ``halted`` is the highest plan id that it was told never to enter again.
    ``round`` counts committed rounds of ``lineage``, ``cursor`` the samples drawn; both are None
    until it holds state. ``generation`` is the group it trains in, None when it is in none.
    ``is_finished``: all samples are drawn and the final evaluation is committed. ``reading`` names the sample that
    is being read (``train_data[17]``), empty where none is. ``topology`` is that of its group, where it was looked for.
    """

    worker_id: str
    seq: int
    term: int
    phase: Phase
    phase_age_s: float
    plan: Plan | None = None
    pending: Plan | None = None
    halted: PlanId = PlanId(0, 0)
    generation: int | None = None
    lineage: int | None = None
    round: int | None = None
    cursor: int | None = None
    is_finished: bool = False
    stop: StopReport | None = None
    failure: Failure | None = None
    build: BuildInfo | None = None
    records: tuple[RoundRecord, ...] = ()
    logs: tuple[LogChunk, ...] = ()
    checkpoints: tuple[CheckpointInfo, ...] = ()
    failed_saves: tuple[FailedSave, ...] = ()
    micro_size: int | None = None
    memory_bytes: int = 0
    gpu_utilisation: float | None = None
    footprint: Footprint | None = None
    spans: tuple[RankSpan, ...] = ()
    loads: tuple[RankLoad, ...] = ()
    cuts: tuple[Cut, ...] = ()
    micro_changes: tuple[MicroChange, ...] = ()
    reading: str = ""
    loader_changes: tuple[LoaderChange, ...] = ()
    topology: Topology | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """What the store has committed, so that its writers may forget it.

    ``rounds`` is the highest (lineage, round) such that all before it are stored, ``committed_at`` the Unix
    seconds of its commit (None before the first); ``before`` is the last round of the attempts before this one, told
    until one of its own is stored (0 where it begins anew), and ``is_before_least`` where they may have come further,
    as the newest of them told of no end; ``log_offsets`` maps workers to stored bytes; ``checkpoints`` are registered
    paths; ``timeline`` the keys of stored rows. ``unpriced`` are the stored rows that still lack their cost; a
    controller is handed them once, since whoever wrote them may be gone, and with them ``exchange``, that which
    ``communication: auto`` judged last, in whatever attempt (empty: none). ``answer`` is the number of the snapshot
    that was stored last; 0 where whoever read this has stored none.
    """

    rounds: tuple[int, int] = (0, 0)
    committed_at: float | None = None
    before: int = 0
    is_before_least: bool = False
    log_offsets: Mapping[str, int] = field(default_factory=dict)
    checkpoints: frozenset[str] = frozenset()
    timeline: frozenset[str] = frozenset()
    unpriced: tuple[TimelineRow, ...] = ()
    answer: int = 0
    exchange: str = ""


class RunGoal(StrEnum):
    """What the service wants of a running attempt."""

    RUN = "run"
    PAUSE = "pause"  # checkpoint, then release everything
    CANCEL = "cancel"  # stop without saving


@dataclass(frozen=True, slots=True, kw_only=True)
class AvoidedNode:
    """A node on which no worker shall start, and from which those that are there shall move away.

    ``goes_at`` is when the cluster takes it away (Unix seconds), None where nobody has named a time.
    """

    node_id: str
    actor: str
    reason: str
    goes_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """The job row's desired state, handed to the controller with every tick.

    ``num_workers`` is the size to reach; ``actor`` and ``reason`` tell who wants it and why. ``num_offered`` is
    the most that the job would be given if it asked (0: its size is not its own to choose). ``settings`` are None where
    the spec's hold; ``saves`` counts the checkpoints that others asked for. ``until`` is where to stand still, in
    samples, for somebody to decide whether it goes on (a rung of a sweep).
    """

    goal: RunGoal
    num_workers: int
    num_offered: int = 0
    actor: str = "service"
    reason: str = ""
    avoid: tuple[AvoidedNode, ...] = ()
    settings: RunSettings | None = None
    saves: int = 0
    until: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """Something that changed while a job ran; ``key`` is unique in the attempt and stable over controllers.

    ``before`` and ``after`` are small JSON values (``{"workers": 2}``). ``cost_s`` is seconds without
    a commit beyond one ordinary step; None while it is not known yet: the row is sent again with it.
    """

    key: str
    kind: TimelineKind
    time: float
    step: int
    actor: str
    reason: str
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    cost_s: float | None = None
    steps_lost: int | None = None


class RunPhase(StrEnum):
    """The controller's view of the attempt; the reconciler turns it into the job's state."""

    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    ENDED = "ended"


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    REQUEUED = "requeued"  # below min for too long, or not placed in time: state is saved


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One worker as a page shows it, with its present load.

    ``part`` is its samples of a whole batch. Shares of a step's time: ``busy_share`` goes into fetching, computing and
    updating, of which ``data_share`` into fetching, and ``waiting_share`` into waiting for others and for gradients.
    ``memory_share`` is that of the bytes that a worker may use (None: no bound is known), ``wire_bytes_per_s`` what it
    sends, ``wire_share`` what part that is of the fastest that it was seen to send. None where nothing was measured
    yet. ``rack_label`` is the rack of its node as labels say, ``reading`` the sample that it reads, as a status has it.
    """

    worker_id: str
    rank: int | None
    node_id: str
    pid: int
    phase: Phase
    phase_age_s: float
    memory_bytes: int
    device: str = ""
    micro_size: int | None = None
    gpu_utilisation: float | None = None
    part: int | None = None
    busy_share: float | None = None
    data_share: float | None = None
    waiting_share: float | None = None
    memory_share: float | None = None
    wire_bytes_per_s: float | None = None
    wire_share: float | None = None
    footprint: Footprint | None = None
    rack_label: str = ""
    reading: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot:
    """A whole attempt folded into one value: the answer of a controller to ``direct``.

    ``num_current`` is the number of members that train; ``total_samples`` is None until a worker has
    built the task. ``has_trained``: this attempt has trained, under whatever controller.
    ``num_asked`` is the size that it would have if it were free to choose (None: not told), and
    ``size_reason`` tells why, in a sentence, ``batch_reasons`` why the batch and its parts are what they are, and
    ``exchange_reason`` why gradients travel as they do. ``topology`` is the group's, where it was looked for.
    ``forecast`` is None until enough steps were measured. ``number`` is another one in each answer of a controller.
    """

    job_id: str
    attempt: int
    term: int
    phase: RunPhase
    outcome: Outcome | None = None
    reason: Reason | None = None
    failure: Failure | None = None
    detail: str = ""
    number: int = 0
    plan: Plan | None = None
    lineage: int = 0
    cursor: int = 0
    total_samples: int | None = None
    num_current: int = 0
    has_trained: bool = False
    num_pending: int = 0
    num_asked: int | None = None
    size_reason: str = ""
    batch_reasons: tuple[str, ...] = ()
    exchange_reason: str = ""
    topology: Topology | None = None
    forecast: Forecast | None = None
    workers: tuple[WorkerView, ...] = ()
    records: tuple[RoundRecord, ...] = ()
    logs: tuple[LogChunk, ...] = ()
    timeline: tuple[TimelineRow, ...] = ()
    checkpoints: tuple[CheckpointInfo, ...] = ()
    spans: tuple[RankSpan, ...] = ()
