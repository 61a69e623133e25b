"""Where the training thread and the threads that answer the controller meet.

Everything that a poll shows lies here, under one lock that is held for microseconds; neither side
ever waits for the other. The phase is one tuple, replaced without the lock, since it changes
several times in a step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from workers.errors import MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS, Failure, StaleTermError
from workers.measures import BuildInfo, Compared, LoaderChange, MicroChange
from workers.plan import Plan, PlanId
from workers.racks import Topology
from workers.status import (
    Acknowledged,
    CheckpointInfo,
    Cut,
    FailedSave,
    LogChunk,
    Phase,
    RoundRecord,
    StopCause,
    StopReport,
    WorkerStatus,
)
from workers.training import boundary
from workers.training.boundary import Agreement
from workers.training.gauges import Gauges
from workers.training.loads import Loads, OwnCost
from workers.training.records import NAMES_REASON, RECORDS_REASON, NameBound, RecordBuffer
from workers.training.spans import RoundCost, Spans

WAIT_SLICE_S = 1.0
MAX_MICRO_CHANGES = 16
ERROR_REASON = (
    f"an error of the job's code was longer than the {MAX_MESSAGE_CHARS:,} characters kept of its message, or the "
    f"{MAX_TRACEBACK_CHARS:,} of its traceback; its middle is left out"
)


class GroupLeftError(Exception):
    """The controller asked to leave the group, or to stop; raised at the next point where it is safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a state has come; ``round`` counts commits of ``lineage``, ``cursor`` samples drawn."""

    lineage: int
    round: int
    cursor: int
    is_finished: bool = False


class Mailbox:
    """One worker's state as others see it, and what others want of the worker.

    ``on_rest`` is called by the training thread where it has come as far as it may without another word.
    """

    def __init__(self, worker_id: str, on_rest: Callable[[], None] = lambda: None) -> None:
        self.worker_id = worker_id
        self._on_rest = on_rest
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._phase = (Phase.BUILD, time.monotonic())
        self._term = 0
        self._seq = 0
        self._agreement = Agreement()
        self._generation: int | None = None
        self._topology: Topology | None = None
        self._leave: Callable[[], None] | None = None
        self._is_stopping = False
        self._should_save = False
        self._position: Position | None = None
        self._gauges = Gauges()
        self._stop: StopReport | None = None
        self._failure: Failure | None = None
        self._build: BuildInfo | None = None
        self._records = RecordBuffer()
        self._names = NameBound()
        self._spans = Spans(worker_id)
        self._loads = Loads()
        self._cuts: dict[str, Cut] = {}
        self._micro_changes: tuple[MicroChange, ...] = ()
        self._checkpoints: dict[str, CheckpointInfo] = {}
        self._finished_checkpoints: Callable[[], list[CheckpointInfo]] = list
        self._failed_saves: Callable[[], tuple[FailedSave, ...]] = tuple
        self._reading: Callable[[], str] = str
        self._loader_changes: Callable[[], tuple[LoaderChange, ...]] = tuple

    # The controller's side: any thread.

    def hear(self, term: int) -> None:
        """Acknowledge a term. Raises StaleTermError for one lower than the highest heard."""
        with self._lock:
            if term < self._term:
                raise StaleTermError(term, self._term)
            self._term = term

    def offer(self, plan: Plan) -> None:
        """Hand over a plan; a late or repeated one changes nothing."""
        with self._changed:
            self._agreement = boundary.offer(self._agreement, plan)
            self._changed.notify_all()

    def halt(self, plan_id: PlanId) -> None:
        """Promise to enter no plan up to this id; the training thread leaves a group formed under one."""
        with self._changed:
            self._agreement = boundary.halt(self._agreement, plan_id)
            leave = self._leave if boundary.is_halted(self._agreement) else None
            self._changed.notify_all()
        if leave is not None:
            leave()

    def stop(self, *, should_save: bool) -> None:
        """Make the training thread end, from wherever it is."""
        with self._changed:
            self._is_stopping = True
            self._should_save |= should_save
            leave = self._leave
            self._changed.notify_all()
        if leave is not None:
            leave()

    def status(self, acked: Acknowledged, logs: tuple[LogChunk, ...], *, wants_records: bool) -> WorkerStatus:
        """Everything as it is now, less what the store has."""
        saved, failed = self._finished_checkpoints(), self._failed_saves()
        with self._lock:
            phase, since_s = self._phase  # here: who is in no group any more must not look as if it trained on
            self._seq += 1
            self._keep(saved, acked)
            at = self._position
            return WorkerStatus(
                worker_id=self.worker_id,
                seq=self._seq,
                term=self._term,
                phase=phase,
                phase_age_s=time.monotonic() - since_s,
                plan=self._agreement.plan,
                pending=self._agreement.pending,
                halted=self._agreement.halted,
                generation=self._generation,
                lineage=at.lineage if at else None,
                round=at.round if at else None,
                cursor=at.cursor if at else None,
                is_finished=at is not None and at.is_finished,
                stop=self._stop,
                failure=self._failure,
                build=self._build,
                records=self._records.oldest() if wants_records else (),
                logs=logs,
                checkpoints=tuple(self._checkpoints.values()),
                failed_saves=failed,
                micro_size=self._gauges.micro_size,
                memory_bytes=self._gauges.memory_bytes,
                gpu_utilisation=self._gauges.gpu_utilisation,
                footprint=self._gauges.footprint,
                spans=self._spans.newest(),
                loads=self._loads.newest(),
                cuts=tuple(self._cuts.values()),
                micro_changes=self._micro_changes,
                reading=self._reading(),
                loader_changes=self._loader_changes(),
                topology=self._topology,
            )

    def _keep(self, saved: list[CheckpointInfo], acked: Acknowledged) -> None:
        """Take what was saved, let go of what the store has; the last checkpoint stays, to tell that all is done."""
        self._checkpoints.update({info.path: info for info in saved})
        self._records.forget(acked.rounds)
        for path in [p for p, info in self._checkpoints.items() if p in acked.checkpoints and not info.is_final]:
            del self._checkpoints[path]

    @property
    def rank(self) -> int | None:
        """This worker's rank under the plan in force, None before it had one."""
        plan = self._agreement.plan
        member = plan.member(self.worker_id) if plan else None
        return member.rank if member else None

    # The training thread's side.

    def set_phase(self, phase: Phase) -> None:
        """Tell what the training thread does from now on."""
        self._phase = (phase, time.monotonic())

    def built(self, info: BuildInfo) -> None:
        """The task is built: ready for a plan."""
        with self._lock:
            self._build = info
        self.set_phase(Phase.READY)
        self._on_rest()

    def failed(self, failure: Failure) -> None:
        """This worker cannot train any more; its thread is about to end."""
        self._note_length(failure)
        with self._lock:
            self._failure = failure
            self._generation = self._leave = None
            self._phase = (Phase.FAILED, time.monotonic())
        self._on_rest()

    def _note_length(self, failure: Failure | None) -> None:
        if failure is not None and failure.num_cut:
            self.cut("error", ERROR_REASON)

    def wait_for_plan(self, *, only_now: bool) -> Plan | None:
        """The next plan that this worker, in no group, may enter; None when it shall stop."""
        with self._changed:
            while not self._is_stopping:
                plan = boundary.enterable(self._agreement, self.worker_id, only_now=only_now)
                if plan is not None:
                    return plan
                self._changed.wait(WAIT_SLICE_S)
        return None

    def enter(self, plan: Plan) -> None:
        """``plan`` is in force here from now on. Raises GroupLeftError when a halt came first."""
        with self._lock:
            if plan.id <= self._agreement.halted:
                raise GroupLeftError(f"plan {plan.id} was halted before it was entered")
            self._agreement = boundary.enter(self._agreement, plan)
            self._stop = None

    def join(self, generation: int, leave: Callable[[], None]) -> None:
        """About to form this generation's group; ``leave`` breaks it from any thread, at any time from now on.

        Raises GroupLeftError when a halt or a stop came first: what was told to the controller after
        a halt, that this worker is in no group, stays true.
        """
        self.set_phase(Phase.RENDEZVOUS)
        with self._lock:
            self.check()
            self._generation, self._leave, self._topology = generation, leave, None

    def surveyed(self, topology: Topology) -> None:
        """The links of the group that this worker is in are known."""
        self._topology = topology

    def rest(self, phase: Phase, stop: StopReport | None = None) -> None:
        """In no group any more, and in this phase until a plan or a stop comes."""
        self._note_length(stop.failure if stop else None)
        with self._lock:
            self._generation = self._leave = None
            self._stop = stop
            self._phase = (phase, time.monotonic())
        self._on_rest()

    def stand(self) -> None:
        """At the plan's line, with the group kept: wait for another plan. Raises as ``await_pending``."""
        self.set_phase(Phase.HELD)
        self._on_rest()
        self.await_pending()

    def check(self) -> None:
        """Raise GroupLeftError if the group is to be left."""
        if self._is_stopping or boundary.is_halted(self._agreement):
            raise GroupLeftError("the group was given up")

    def await_pending(self) -> None:
        """Wait for a plan to agree on; the controller bounds it. Raises GroupLeftError once the group is given up."""
        with self._changed:
            while not boundary.has_pending(self._agreement):
                self.check()
                self._changed.wait(WAIT_SLICE_S)
            self.check()

    def idle(self, timeout_s: float) -> None:
        """Wait. Raises GroupLeftError as soon as the plan in force is given up."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping or boundary.is_halted(self._agreement), timeout_s)
            self.check()

    @property
    def stop_cause(self) -> StopCause:
        """Why a group broke, as far as this worker knows."""
        return StopCause.ABORTED if boundary.is_halted(self._agreement) else StopCause.PEER

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    @property
    def should_save(self) -> bool:
        return self._should_save

    @property
    def plan(self) -> Plan:
        """The plan in force; only for a worker that has entered one."""
        plan = self._agreement.plan
        assert plan is not None
        return plan

    def count(self) -> int:
        """What this worker adds to the vector's "I hold the pending plan"; call when encoding it."""
        if self._agreement.pending is None:
            return 0
        with self._lock:
            self._agreement, counts = boundary.count(self._agreement)
            return counts

    def settle(self, num_counted: int) -> None:
        """Bring the counted plan into force if everybody counted it."""
        if self._agreement.counted is None:
            return
        with self._lock:
            self._agreement = boundary.settle(self._agreement, num_counted)

    def moved(self, position: Position) -> None:
        """The state is at another position now."""
        self._position = position

    def gauge(self, gauges: Gauges) -> None:
        """Take new readings."""
        self._gauges = gauges

    def micro_changed(
        self,
        *,
        before: int | None,
        after: int,
        reason: str,
        unit: str = "samples",
        seconds: Mapping[int, float] | None = None,
        compared: Compared | None = None,
        cost_s: float = 0.0,
    ) -> None:
        """Tell that forward passes have ``after`` samples, or of another ``unit``, from now on; see ``MicroChange``."""
        if unit == "samples":
            self._gauges = replace(self._gauges, micro_size=after)
        number = 1 + (self._micro_changes[-1].n if self._micro_changes else 0)
        change = MicroChange(
            n=number,
            before=before,
            after=after,
            reason=reason,
            time=time.time(),
            unit=unit,
            seconds=dict(seconds or {}),
            compared=compared,
            cost_s=cost_s,
        )
        self._micro_changes = (*self._micro_changes, change)[-MAX_MICRO_CHANGES:]

    def spent(self, rank: int, unix_s: float, cost: RoundCost, own: OwnCost | None) -> None:
        """Tell what the round that was committed at ``unix_s`` cost this worker, and of that its part by itself."""
        with self._lock:
            self._spans.add(rank, unix_s, cost)
            if own is not None:
                self._loads.add(own, cost.step_s)

    def publish(self, record: RoundRecord) -> int:
        """Hand a record to the polls; returns how many older ones were given up for lack of room."""
        bounded = self._names.bounded(record)
        if bounded is not record:
            self.cut("names", NAMES_REASON)
        with self._lock:
            num_thinned = self._records.keep(bounded)
        if num_thinned:
            self.cut("records", RECORDS_REASON)
        return num_thinned

    def cut(self, what: str, reason: str) -> None:
        """Tell that something is not told in full from now on; once is enough. Any thread."""
        if what not in self._cuts:
            with self._lock:
                self._cuts[what] = Cut(what=what, reason=reason, time=time.time())

    def untold(self) -> tuple[RoundRecord, ...]:
        """The records that the store has not acknowledged here, oldest first."""
        with self._lock:
            return self._records.all()

    def take_over(self, records: tuple[RoundRecord, ...]) -> None:
        """Have these records to tell as well."""
        with self._lock:
            self._records.merge(records)

    def watch_checkpoints(
        self, finished: Callable[[], list[CheckpointInfo]], failed: Callable[[], tuple[FailedSave, ...]]
    ) -> None:
        """Ask at every poll which checkpoints became complete since ``finished`` was asked last, and which failed."""
        self._finished_checkpoints, self._failed_saves = finished, failed

    def watch_reading(self, place: Callable[[], str], changes: Callable[[], tuple[LoaderChange, ...]]) -> None:
        """Ask at every poll which sample is being read, and who reads since when."""
        self._reading, self._loader_changes = place, changes
