"""Where the training thread and the threads that answer the controller meet.

Everything that a poll shows lies here, under one lock that is held for microseconds; neither side
ever waits for the other. The phase is one tuple, replaced without the lock, since it changes
several times in a step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from workers.errors import Failure, StaleTermError
from workers.plan import Plan, PlanId
from workers.status import (
    Acknowledged,
    BuildInfo,
    CheckpointInfo,
    LogChunk,
    Phase,
    RoundRecord,
    StopCause,
    StopReport,
    WorkerStatus,
)
from workers.training import boundary
from workers.training.boundary import Agreement
from workers.training.records import RecordBuffer
from workers.training.spans import RoundCost, Spans

WAIT_SLICE_S = 1.0


class GroupLeftError(Exception):
    """The controller asked to leave the group, or to stop; raised at the next point where it is safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a state has come; ``round`` counts commits of ``lineage``, ``cursor`` samples drawn."""

    lineage: int
    round: int
    cursor: int
    is_finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What changes now and then besides the position."""

    micro_size: int | None = None
    memory_bytes: int = 0
    gpu_utilisation: float | None = None


class Mailbox:
    """One worker's state as others see it, and what others want of the worker."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._phase = (Phase.BUILD, time.monotonic())
        self._term = 0
        self._seq = 0
        self._agreement = Agreement()
        self._generation: int | None = None
        self._leave: Callable[[], None] | None = None
        self._is_stopping = False
        self._should_save = False
        self._position: Position | None = None
        self._gauges = Gauges()
        self._stop: StopReport | None = None
        self._failure: Failure | None = None
        self._build: BuildInfo | None = None
        self._records = RecordBuffer()
        self._spans = Spans(worker_id)
        self._checkpoints: dict[str, CheckpointInfo] = {}
        self._finished_checkpoints: Callable[[], list[CheckpointInfo]] = list

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
        phase, since_s = self._phase
        saved = self._finished_checkpoints()
        with self._lock:
            self._seq += 1
            self._checkpoints.update({info.path: info for info in saved})
            self._records.forget(acked.rounds)
            for path in acked.checkpoints & self._checkpoints.keys():
                del self._checkpoints[path]
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
                micro_size=self._gauges.micro_size,
                memory_bytes=self._gauges.memory_bytes,
                gpu_utilisation=self._gauges.gpu_utilisation,
                spans=self._spans.newest(),
            )

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

    def failed(self, failure: Failure) -> None:
        """This worker cannot train any more; its thread is about to end."""
        with self._lock:
            self._failure = failure
            self._generation = self._leave = None
        self.set_phase(Phase.FAILED)

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
            self._generation, self._leave = generation, leave

    def rest(self, phase: Phase, stop: StopReport | None = None) -> None:
        """In no group any more, and in this phase until a plan or a stop comes."""
        with self._lock:
            self._generation = self._leave = None
            self._stop = stop
            self._phase = (phase, time.monotonic())

    def check(self) -> None:
        """Raise GroupLeftError if the group is to be left."""
        if self._is_stopping or boundary.is_halted(self._agreement):
            raise GroupLeftError("the group was given up")

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

    def set_micro_size(self, micro_size: int) -> None:
        """Samples of a forward pass from now on."""
        self._gauges = replace(self._gauges, micro_size=micro_size)

    def spent(self, rank: int, unix_s: float, cost: RoundCost) -> None:
        """Tell what the round that was committed at ``unix_s`` cost this worker."""
        with self._lock:
            self._spans.add(rank, unix_s, cost)

    def publish(self, record: RoundRecord) -> int:
        """Hand a record to the polls; returns how many older ones were given up for lack of room."""
        with self._lock:
            return self._records.keep(record)

    def untold(self) -> tuple[RoundRecord, ...]:
        """The records that the store has not acknowledged here, oldest first."""
        with self._lock:
            return self._records.all()

    def take_over(self, records: tuple[RoundRecord, ...]) -> None:
        """Have these records to tell as well."""
        with self._lock:
            self._records.merge(records)

    def watch_checkpoints(self, finished: Callable[[], list[CheckpointInfo]]) -> None:
        """Ask ``finished`` at every poll which checkpoints became complete since it was asked last."""
        self._finished_checkpoints = finished
