"""Workers in memory behind the controller's ``Fleet``: each poll of a training worker commits some rounds."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from workers.control.actor import Tail
from workers.control.fleet import Heard
from workers.errors import Failure, Reason
from workers.plan import CheckpointSource, Goal, Plan, PlanId, Source
from workers.run_settings import Donor
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

BATCH = 8
DIVERGED = Failure(reason=Reason.DIVERGED, type="DivergedError", message="the loss was not finite")
ROUNDS_A_POLL = 10
_IN_GROUP = (Phase.COMPUTE, Phase.HELD)


Measured: TypeAlias = Callable[[Plan, int], dict[str, float]]


def falling(plan: Plan, round: int) -> dict[str, float]:
    """A loss that is the same whatever the plan says."""
    return {"loss": 1.0 / round}


@dataclass
class FakeWorker:
    """One worker; ``total`` rounds are to be done in all, or it fails for good at round ``fails_at``, by ``failure``.

    Every round reports ``values`` besides.
    """

    worker_id: str
    total: int
    fails_at: int | None = None
    node_id: str = "n"
    failure: Failure = DIVERGED
    phase: Phase = Phase.BUILD
    plan: Plan | None = None
    halted: PlanId = field(default=PlanId(0, 0))
    stop: StopReport | None = None
    term: int = 0
    seq: int = 0
    round: int | None = None
    log: bytes = b""
    records: list[RoundRecord] = field(default_factory=list)
    values: Mapping[str, float] = field(default_factory=dict)
    measured: Measured = falling
    may_reach: Callable[[], int] = lambda: sys.maxsize
    read: Callable[[Source], Failure | None] = lambda source: None
    asked: list[CheckpointInfo] = field(default_factory=list)

    def poll(self, term: int, plan: Plan | None, acked: Acknowledged, wants_records: bool) -> WorkerStatus:
        self.term, self.seq = term, self.seq + 1
        if self.phase is Phase.BUILD:
            self.phase = Phase.READY
        elif plan is not None and plan.id > self._left:
            self._obey(plan)
        self.records = [r for r in self.records if r.key > acked.rounds]
        offset = acked.log_offsets.get(self.worker_id, 0)
        rest = self.log[offset:]
        is_done = self.phase is Phase.DONE
        return WorkerStatus(
            worker_id=self.worker_id,
            seq=self.seq,
            term=self.term,
            phase=self.phase,
            phase_age_s=0.0,
            plan=self.plan,
            halted=self.halted,
            generation=self.plan.generation if self.plan and self.phase in _IN_GROUP else None,
            lineage=self.plan.lineage if self.plan else None,
            round=self.round,
            cursor=None if self.round is None else self.round * BATCH,
            is_finished=is_done,
            stop=self.stop,
            failure=self.failure if self.phase is Phase.FAILED else None,
            build=BuildInfo(
                num_train=100,
                num_eval=0,
                num_parameters=1,
                total_samples=self.total * BATCH,
                device="cpu",
                device_seconds={},
                node_id=self.node_id,
                pid=1,
            ),
            records=tuple(self.records) if wants_records else (),
            logs=(LogChunk(worker_id=self.worker_id, offset=offset, rank=0, time=0.0, data=rest),) if rest else (),
            checkpoints=(*self.asked, *([self._checkpoint(is_final=True)] if is_done else [])),
        )

    def halt(self, plan_id: PlanId) -> None:
        self.halted = max(self.halted, plan_id)
        self.leave_group()

    def leave_group(self) -> None:
        """Stop in mid-round, as for the loss of a peer."""
        if self.plan is not None and self.phase in _IN_GROUP:
            self.phase = Phase.STOPPED
            self.stop = StopReport(generation=self.plan.generation, cause=StopCause.ABORTED)

    @property
    def _left(self) -> PlanId:
        """The plan up to which this worker enters none."""
        if self.phase is Phase.STOPPED and self.plan is not None:
            return max(self.halted, self.plan.id)
        return self.halted

    def _obey(self, plan: Plan) -> None:
        if plan.member(self.worker_id) is None:
            if self.plan is not None and self.phase in _IN_GROUP:
                self.stop = StopReport(generation=self.plan.generation, cause=StopCause.REMOVED)
                self.plan, self.phase = plan, Phase.STOPPED
        elif plan.goal is Goal.SAVE_AND_STOP:
            self.plan, self.phase = plan, Phase.SAVED
        else:
            if self.round is None and isinstance(plan.source, CheckpointSource):
                if (failure := self.read(plan.source)) is not None:
                    is_reader = plan.members[0].worker_id == self.worker_id
                    cause = StopCause.CHECKPOINT if is_reader else StopCause.PEER
                    self.plan, self.phase = plan, Phase.STOPPED
                    self.stop = StopReport(generation=plan.generation, cause=cause, failure=failure)
                    return
                self.round = plan.source.cursor // BATCH
            if isinstance(plan.source, Donor) and (self.plan is None or plan.lineage > self.plan.lineage):
                self.round = plan.source.cursor // BATCH
            num_saves = self.plan.saves if self.plan else plan.saves
            self.plan = plan
            if plan.saves > num_saves:
                self.asked = [self._checkpoint(is_final=False)]
            for _ in range(min(ROUNDS_A_POLL, self.may_reach() - (self.round or 0))):
                if not self._stands(plan):
                    self._train(plan)

    def _stands(self, plan: Plan) -> bool:
        """Whether the last round crossed the plan's line."""
        at = (self.round or 0) * BATCH
        if plan.until is None or not at - BATCH < plan.until <= at or self.phase in (Phase.DONE, Phase.FAILED):
            return False
        self.phase = Phase.HELD
        return True

    def _train(self, plan: Plan) -> None:
        self.plan, self.stop = plan, None
        if self.phase in (Phase.DONE, Phase.FAILED):
            return
        if self.round is not None and self.round + 1 == self.fails_at:
            self.phase = Phase.FAILED
            return
        self.phase = Phase.COMPUTE
        self.round = (self.round or 0) + 1
        self.log += b"round %d\n" % self.round
        self.records.append(
            RoundRecord(
                lineage=plan.lineage,
                round=self.round,
                generation=plan.generation,
                plan_id=plan.id,
                cursor=self.round * BATCH,
                samples=BATCH,
                time=float(self.round),
                values={
                    **self.measured(plan, self.round),
                    "step_s": 1.0 / plan.num_members,
                    "workers": plan.num_members,
                    **self.values,
                },
            )
        )
        if self.round == self.total:
            self.phase = Phase.DONE

    def _checkpoint(self, *, is_final: bool) -> CheckpointInfo:
        assert self.plan is not None
        assert self.round is not None
        return CheckpointInfo(
            path="final" if is_final else f"{self.plan.lineage:04d}-{self.round:09d}",
            attempt=1,
            lineage=self.plan.lineage,
            generation=self.plan.generation,
            round=self.round,
            step=self.round,
            cursor=self.round * BATCH,
            size_bytes=1,
            metric=None,
            is_final=is_final,
            created_at=0.0,
            settings=self.plan.settings,
            saves=self.plan.saves,
        )


class FakeFleet:
    """``workers`` are those alive, on ``machines()``; tests look at, and kill, what they like."""

    def __init__(
        self,
        term: int,
        total: int = 20,
        workers: dict[str, FakeWorker] | None = None,
        machines: Callable[[], tuple[str, ...]] = lambda: ("n",),
        fails_at: int | None = None,
        failure: Failure = DIVERGED,
        values: Mapping[str, float] | None = None,
        measured: Measured = falling,
        may_reach: Callable[[], int] = lambda: sys.maxsize,
        read: Callable[[Source], Failure | None] = lambda source: None,
    ) -> None:
        self._values = values or {}
        self._measured, self._may_reach, self._read = measured, may_reach, read
        self.news = asyncio.Event()
        self._machines = machines
        self.workers = workers if workers is not None else {}
        self.asked_for_records: list[str] = []
        self.has_left = False
        self.breaks_on_poll: Exception | None = None
        self.breaks_on_start: Exception | None = None
        self.lingers = False
        self.told_to_save: set[str] = set()
        self._term, self._total, self._fails_at = term, total, fails_at
        self._failure = failure
        self._statuses: dict[str, WorkerStatus] = {}
        self._lost: dict[str, str] = {}
        self._rested: frozenset[str] = frozenset()
        self._tails: dict[str, bytes] = {}
        self._unplaced: set[str] = set()
        self._is_superseded = False
        self._head_seen_s: float | None = None
        self._nodes_seen_s: dict[str, float] = {}

    async def adopt(self) -> tuple[str, ...]:
        return tuple(self.workers)

    def heard(self) -> Heard:
        heard = Heard(
            statuses=self._statuses,
            lost=self._lost,
            rested=self._rested,
            head_seen_s=self._head_seen_s,
            nodes_seen_s=dict(self._nodes_seen_s),
            is_superseded=self._is_superseded,
        )
        self._statuses, self._lost, self._rested = {}, {}, frozenset()
        return heard

    def rest(self, worker_id: str) -> None:
        """A worker tells that it waits for a word."""
        self._rested |= {worker_id}
        self.news.set()

    @property
    def worker_ids(self) -> tuple[str, ...]:
        return tuple(self.workers)

    def start(self, worker_id: str, avoids: frozenset[str], *, must_fit: bool = False) -> None:
        if self.breaks_on_start is not None:
            raise self.breaks_on_start
        allowed = [name for name in self._machines() if name not in avoids]
        if not allowed and must_fit:
            self._lost[worker_id] = "it could not be started: no node has room for it now"
            self.news.set()
        elif not allowed:
            self._unplaced.add(worker_id)
        else:
            place = min(allowed, key=lambda name: sum(w.node_id == name for w in self.workers.values()))
            self.workers[worker_id] = FakeWorker(
                worker_id,
                self._total,
                self._fails_at,
                place,
                self._failure,
                values=self._values,
                measured=self._measured,
                may_reach=self._may_reach,
                read=self._read,
            )
            self.news.set()

    def can_poll(self, worker_id: str) -> bool:
        return worker_id in self.workers

    def poll(self, worker_id: str, plan: Plan | None, acked: Acknowledged, wants_records: bool) -> None:
        if self.breaks_on_poll is not None:
            raise self.breaks_on_poll
        if wants_records:
            self.asked_for_records.append(worker_id)
        self._statuses[worker_id] = self.workers[worker_id].poll(self._term, plan, acked, wants_records)
        self.news.set()

    def halt(self, worker_id: str, plan_id: PlanId) -> None:
        self.workers[worker_id].halt(plan_id)

    def stop(self, worker_id: str, save: bool) -> None:
        if save:
            self.told_to_save.add(worker_id)
        if worker_id in self._unplaced:
            self._unplaced.discard(worker_id)
            self._lost[worker_id] = "it was taken back"
            self.news.set()
        elif worker_id in self.workers and not self.lingers:
            self.lose(worker_id, "it ended")

    def kill(self, worker_id: str) -> None:
        self.stop(worker_id, save=False)

    def ask_head(self) -> None:
        self._head_seen_s = time.monotonic()
        self.news.set()

    def ask_node(self, node_id: str) -> None:
        self._nodes_seen_s[node_id] = time.monotonic()
        self.news.set()

    async def tail(self, worker_id: str, offset: int) -> Tail | None:
        log = self._tails.get(worker_id)
        return None if log is None else (offset, log[offset:])

    async def bundle(self) -> list[Any]:
        return []

    def abandon(self) -> None:
        return

    def leave(self) -> None:
        self.has_left = True

    def lose(self, worker_id: str, why: str, last_words: bytes = b"") -> None:
        """A worker's process ends; what it wrote stays on its node."""
        self._tails[worker_id] = self.workers.pop(worker_id).log + last_words
        self._statuses.pop(worker_id, None)
        self._lost[worker_id] = why
        self.news.set()

    def supersede(self) -> None:
        """Another term takes office."""
        self._is_superseded = True
        self.news.set()
