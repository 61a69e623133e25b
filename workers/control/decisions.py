"""What a controller knows, is told, and decides: the values of a turn. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from workers.assignment import JobKey
from workers.control.adapting import Adapting
from workers.control.compressing import Compressing
from workers.control.fatal_passes import FatalPasses
from workers.control.sharing import Sharing
from workers.control.sizing import Sizing
from workers.errors import Failure, Reason
from workers.measures import Forecast
from workers.plan import FailureCount, Plan, PlanId
from workers.spec import JobSpec
from workers.status import (
    START_PHASES,
    Acknowledged,
    CheckpointInfo,
    Direction,
    Outcome,
    Phase,
    RunPhase,
    TimelineRow,
    WorkerStatus,
)

BOUND_SETTINGS: Mapping[Phase, str] = {
    Phase.INSTALL: "install_s",
    Phase.BUILD: "build_s",
    Phase.DATA: "data_s",
    Phase.COMPUTE: "step_s",
    Phase.EVAL: "eval_s",
}
"""The settings of the service that say how long a phase of the user's own may take."""

SLOW_START_S = 60.0
SLOW_VERDICT_S = 5.0
INSTALL_MARGIN_S = 60.0


def phase_bounds_s(
    *,
    install_s: float = 1800.0,
    build_s: float = 1800.0,
    data_s: float = 300.0,
    step_s: float = 600.0,
    eval_s: float = 900.0,
) -> Mapping[Phase, float]:
    """Seconds that a worker may be in each phase.

    Who installs may have waited as long for another worker of its node. Who is in an exchange waits for others' data
    and computing, and must not be blamed for them.
    """
    return {
        Phase.INSTALL: 2 * install_s + INSTALL_MARGIN_S,
        Phase.BUILD: build_s,
        Phase.RENDEZVOUS: 30.0,
        Phase.SYNC: 120.0,
        Phase.DATA: data_s,
        Phase.COMPUTE: step_s,
        Phase.EXCHANGE: data_s + step_s,
        Phase.COMMIT: 120.0,
        Phase.EVAL: eval_s,
        Phase.SAVE: 600.0,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """Bounds of a controller's patience, in seconds.

    ``liveness_s``: silence after which a worker is taken for lost while others answer, or its node (three
    times that where nobody does). ``hold_s``: how long survivors below ``workers.min`` hold their state.
    ``place_s``: how long the first ``min`` workers may wait for a place. ``gather_s``: how long a
    start waits for more than ``min`` workers to become ready. ``stop_s``: after it an agreed
    save-and-stop becomes a NOW plan; also how long saved workers wait for the store to have their records.
    ``evacuate_s``: how long members on a node that is to be emptied train on while others take their place.
    ``line_s``: how long members stand at a line before they train on without a verdict. ``review_s``: how often the
    members' parts of a batch are looked at again.
    """

    liveness_s: float = 15.0
    hold_s: float = 120.0
    place_s: float = 120.0
    gather_s: float = 10.0
    stop_s: float = 15.0
    evacuate_s: float = 60.0
    line_s: float = 60.0
    review_s: float = 300.0
    kill_s: float = 15.0
    phase_bounds_s: Mapping[Phase, float] = field(default_factory=phase_bounds_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """What the controller holds of one worker. Times are the controller's monotonic seconds.

    ``heard_s`` is None until its first answer (it may still wait for a place on the cluster);
    ``refused_since_s`` is set while its calls find no connection.
    ``stopping_since_s`` is set once it was told to stop; ``kill`` tells why it is being killed. ``avoids``
    are the nodes on which it was asked not to be placed.
    """

    worker_id: str
    started_s: float
    heard_s: float | None = None
    refused_since_s: float | None = None
    status: WorkerStatus | None = None
    stopping_since_s: float | None = None
    kill: str | None = None
    avoids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the attempt is going to end; ``must_save`` until its state is in storage, or has been tried often enough.

    ``num_saves`` counts the tries by one worker alone, ``save_at_s`` is when the last one began.
    """

    outcome: Outcome
    reason: Reason | None = None
    failure: Failure | None = None
    detail: str = ""
    must_save: bool = False
    num_saves: int = 0
    save_at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerState:
    """All a controller knows; it can be learned again from the row and the workers, speeds by measuring anew.

    ``plan`` is the latest plan known: issued here, or reported by a worker. ``offers`` is what each worker's polls
    carry. ``is_broken``: the group of ``plan`` is being taken down, ``why_broken`` says why. ``departed`` are the
    workers lost since the latest plan, ``nodes`` where each worker was last, ``avoided`` the nodes that are to be
    empty of workers, ``evacuating_since_s`` since when members are being moved off them. ``furthest`` is the highest
    (lineage, round) reported, ``restored`` the (lineage, cursor) at which the last restore began, ``settled_at`` what
    it was when the latest plan was first seen in force everywhere; ``reached`` is the wanted size that it last met,
    ``sizing`` what is known of sizes, ``sharing`` of the workers' speeds, ``adapting`` of batches, ``compressing`` of
    gradients on their way; ``forecast`` is what was foreseen by it at ``foreseen_s``, with ``foreseen_by`` steps of
    the layout in force.
    ``failures`` are those of user code that count; ``counted_generation`` is the generation of the last counted one.
    ``num_formed`` counts generations since the last commit, ``num_launches`` those that began without a survivor
    since samples were trained on for the first time: ``best_cursor`` is how many that were. ``num_start_failures``
    counts workers in a row that never became ready (``starts``) at the size ``filled_to``. ``spurned`` is the
    number of the order whose donor cannot be had. ``fatal`` is what is known of forward passes that workers died in.
    """

    key: JobKey
    term: int
    spec: JobSpec
    settings: ControlSettings
    begun_s: float
    workers: Mapping[str, WorkerFacts] = field(default_factory=dict)
    plan: Plan | None = None
    offers: Mapping[str, Plan] = field(default_factory=dict)
    next_n: int = 1
    next_worker: int = 1
    is_adopting: bool = True
    turned_s: float | None = None
    is_broken: bool = False
    why_broken: str = ""
    departed: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)
    avoided: frozenset[str] = frozenset()
    evacuating_since_s: float | None = None
    furthest: tuple[int, int] = (0, 0)
    restored: tuple[int, int] = (0, 0)
    settled_at: tuple[int, int] | None = None
    num_formed: int = 0
    num_launches: int = 0
    num_start_failures: int = 0
    start_failed_s: float = 0.0
    start_failure: Failure | None = None
    filled_to: int = 0
    best_cursor: int = 0
    spurned: int = 0
    failures: FailureCount = field(default_factory=FailureCount)
    counted_generation: int = 0
    failure: Failure | None = None
    reached: int = 0
    sizing: Sizing = field(default_factory=Sizing)
    sharing: Sharing = field(default_factory=Sharing)
    fatal: FatalPasses = field(default_factory=FatalPasses)
    adapting: Adapting = field(default_factory=Adapting)
    compressing: Compressing = field(default_factory=Compressing)
    forecast: Forecast | None = None
    foreseen_s: float = 0.0
    foreseen_by: int = 0
    ready_since_s: float | None = None
    short_since_s: float | None = None
    saving_since_s: float | None = None
    saved_since_s: float | None = None
    has_trained: bool = False
    final_checkpoint: CheckpointInfo | None = None
    ending: Ending | None = None
    phase: RunPhase = RunPhase.STARTING
    outcome: Outcome | None = None

    @property
    def reason(self) -> Reason | None:
        """The reason that the job's state will carry, None while the attempt goes on."""
        return self.ending.reason if self.ending else None

    @property
    def detail(self) -> str:
        """The ending in words, why starts fail or the group is down, and which start takes its time."""
        if self.ending is not None:
            return self.ending.detail
        if self._standing:
            return self._standing
        if self.num_start_failures and self.start_failure is not None:
            number = self.num_start_failures
            count = "1 start of a worker" if number == 1 else f"{number} starts of workers in a row"
            told = f"{count} failed: {self.start_failure.message}; it is tried again"
            return "; ".join(filter(None, [told, self._awaited]))
        return "; ".join(filter(None, [self.why_broken, self._awaited]))

    @property
    def _standing(self) -> str:
        """Where members have stood still for a while; empty while none does."""
        ages_s = [
            facts.status.phase_age_s
            for facts in self.workers.values()
            if facts.status is not None and facts.kill is None and facts.status.phase is Phase.HELD
        ]
        if self.plan is None or max(ages_s, default=0.0) < SLOW_VERDICT_S:
            return ""
        told = f"stands still at {self.plan.until or 0:,} samples until its sweep says whether it goes on"
        return f"{told}; without a word it trains on after {self.settings.line_s:.0f} s"

    @property
    def _awaited(self) -> str:
        """The longest start that takes its time, in words that change once a minute; empty while none does."""
        slow = [
            (facts.status.phase_age_s, facts.worker_id, facts.status.phase)
            for facts in self.workers.values()
            if facts.status is not None and facts.kill is None and facts.status.phase in START_PHASES
        ]
        age_s, worker_id, phase = max(slow, default=(0.0, "", Phase.BUILD))
        if age_s < SLOW_START_S:
            return ""
        what = "installs dependencies" if phase is Phase.INSTALL else "builds its task"
        bound_s = self.settings.phase_bounds_s[phase]
        return (
            f"worker {worker_id} {what} for {age_s // 60:.0f} min by now, and has {bound_s / 60:.0f} min (the setting "
            f"{BOUND_SETTINGS[phase]}); the log tells what it does"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What happened since the last turn.

    ``listed`` are the workers of this attempt found by name at the adoption (None afterwards).
    ``statuses`` holds the newest answer of each worker that answered, ``lost`` those whose process is
    known to be gone and why, ``refusing`` those whose last call found no connection. ``nodes`` tells where Ray has
    workers that were adopted, also those that have not answered yet. ``head_seen_s`` is when Ray's
    head was asked the newest question that it answered in time, on the controller's clock; ``was_cut_off`` says that
    it answered late: this controller's own node was out of reach. ``nodes_seen_s`` is when each node gave its latest
    answer, of those that were asked, on the same clock. ``latest`` is the newest complete checkpoint in storage that
    this attempt may go on from; unless it ``has_looked`` there may be one that nobody knows of.
    ``unix_s`` is wall-clock time, for rows only.
    """

    unix_s: float
    direction: Direction
    acked: Acknowledged = field(default_factory=Acknowledged)
    listed: tuple[str, ...] | None = None
    statuses: Mapping[str, WorkerStatus] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    refusing: frozenset[str] = frozenset()
    nodes: Mapping[str, str] = field(default_factory=dict)
    head_seen_s: float | None = None
    was_cut_off: bool = False
    nodes_seen_s: Mapping[str, float] = field(default_factory=dict)
    latest: CheckpointInfo | None = None
    has_looked: bool = False


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a worker actor of this id, on none of the nodes to avoid; one that ``must_fit`` waits for no room."""

    worker_id: str
    avoids: frozenset[str] = frozenset()
    must_fit: bool = False


@dataclass(frozen=True, slots=True)
class HaltWorker:
    """Make a worker leave its group and never enter a plan up to this id; repeated until it reports so."""

    worker_id: str
    plan_id: PlanId


@dataclass(frozen=True, slots=True)
class SupersedeGroup:
    """Fail every rendezvous of this and of earlier generations at once, also for who comes later."""

    generation: int


@dataclass(frozen=True, slots=True)
class StopWorker:
    """End a worker in order; ``save`` asks it to write its last commit first."""

    worker_id: str
    save: bool = False


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End a worker that is stuck, silent or past an orderly stop."""

    worker_id: str
    why: str


@dataclass(frozen=True, slots=True)
class AskHead:
    """Find out whether Ray's head answers, before workers out of reach are left behind; repeated until it does."""


@dataclass(frozen=True, slots=True)
class AskNode:
    """Find out whether a node answers whose workers are silent; repeated until it does."""

    node_id: str


@dataclass(frozen=True, slots=True)
class Note:
    """A row for the timeline."""

    row: TimelineRow


Action: TypeAlias = StartWorker | HaltWorker | SupersedeGroup | StopWorker | KillWorker | AskHead | AskNode | Note
