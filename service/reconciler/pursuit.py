"""Following one placed job: start its controller, direct it, store what it tells, move its state."""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass, replace

import structlog

from service.folders import checkpoints_place
from service.ports import (
    ClusterLostError,
    ClusterPort,
    ControllerFaultError,
    ControllerLostError,
    ControllerSilentError,
)
from service.queue import wanted_workers
from service.reconciler.launching import Launching
from service.reconciler.verdicts import Step, effective_goal, lost, moves
from service.records import Explanation, JobRow, Transition
from service.states import PLACED_STATES, JobState
from service.store.port import ReconcilerStore
from workers.assignment import JobKey
from workers.checkpoints import list_checkpoints
from workers.control.names import controller_name
from workers.errors import Failure, JobError, Reason, failure_of
from workers.status import Acknowledged, AvoidedNode, Direction, JobSnapshot, RunGoal, RunPhase
from workers.storage import open_storage

log = structlog.get_logger("concertina.reconciler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """What a leader works with; ``fence`` goes with every write.

    ``max_demand_workers``: an autoscaler is asked for room for so many workers more, at most.
    ``spares_per_node``: so many processes wait on a node with room.
    """

    store: ReconcilerStore
    cluster: ClusterPort
    launching: Launching
    fence: int
    storage: str
    liveness_s: float
    max_demand_workers: int
    spares_per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a job may ask for (``Direction.num_offered``), and why it was last made smaller for others."""

    num_offered: int = 0
    why_smaller: str = ""


class Pursuit:
    """One job, from its admission until it is placed no longer."""

    def __init__(self, office: Office, job: JobRow) -> None:
        self._office = office
        self._key = JobKey(job_id=job.id, attempt=job.attempt)
        self._acked: Acknowledged | None = None
        self.snapshot: JobSnapshot | None = None
        self.offer = Offer()

    @property
    def attempt(self) -> int:
        return self._key.attempt

    @property
    def places(self) -> tuple[str, ...]:
        """The nodes of its workers by rank, as last told; those without a rank come last."""
        views = self.snapshot.workers if self.snapshot else ()
        return tuple(v.node_id for v in sorted(views, key=lambda v: math.inf if v.rank is None else v.rank))

    def is_brisk(self, job: JobRow) -> bool:
        """Whether something is about to happen, so that it pays to look again soon."""
        snapshot = self.snapshot
        if snapshot is None or job.state in (JobState.PAUSING, JobState.CANCELLING):
            return True
        is_last_round = snapshot.total_samples is not None and snapshot.cursor >= snapshot.total_samples
        return snapshot.phase in (RunPhase.STOPPING, RunPhase.ENDED) or is_last_round

    async def begin(self, job: JobRow) -> None:
        """Start the controller of the row's term."""
        await self._start(job)

    async def step(self, job: JobRow, *, is_leaving: bool, avoid: tuple[AvoidedNode, ...]) -> None:
        """Direct the controller once and store its answer.

        Raises ClusterLostError, FencedOutError, StaleRowError (a command came in between: look again).
        """
        office = self._office
        acked = self._acked or await office.store.acknowledged(job.id, job.attempt)
        direction = replace(direction_of(job, self.offer, is_leaving=is_leaving), avoid=avoid)
        try:
            snapshot = await office.cluster.direct(self._key, job.term, direction, acked, office.liveness_s)
        except ControllerLostError as error:
            await self._succeed(job, str(error), past=None)
        except ControllerSilentError as error:
            await self._succeed(job, str(error), past=controller_name(self._key, job.term))
        except ControllerFaultError as error:
            await self._give_up(job, replace(failure_of(error), reason=Reason.CONTROLLER_ERROR))
        else:
            if snapshot is None:
                await self._start(job)
            else:
                await self._take(job, snapshot)

    async def lose(self, job: JobRow) -> None:
        """Nothing of the job is left on the cluster: move it to where it can go on from its checkpoint."""
        await self.register_checkpoints()
        await self._move(job, lost(job.state))

    async def register_checkpoints(self) -> None:
        """Tell the store what is in storage, also what was saved, or thinned out, while nobody looked."""
        storage = open_storage(checkpoints_place(self._office.storage, self._key.job_id))
        found = await asyncio.to_thread(list_checkpoints, storage)
        await self._office.store.register_checkpoints(self._key.job_id, found, self._office.fence)

    async def _start(self, job: JobRow) -> None:
        try:
            launch = await self._office.launching.launch(job)
        except JobError as error:
            # What the spec names is not there: the words are for its owner, the lines of our own code are not.
            await self._give_up(job, replace(failure_of(error), traceback=""), MISSING)
            return
        try:
            await self._office.cluster.start_controller(self._key, job.term, launch)
        except (ControllerLostError, ControllerSilentError) as error:
            log.warning("controller did not start", job=job.id, term=job.term, error=str(error))

    async def _succeed(self, job: JobRow, why: str, *, past: str | None) -> None:
        """Put a controller of a new term in office; it adopts the workers. The old one is ended after."""
        if not (self._office.cluster.has_node() and await self._office.cluster.is_reachable()):
            raise ClusterLostError(why)
        log.warning("new controller", job=job.id, attempt=job.attempt, term=job.term + 1, why=why)
        job = await self._office.store.new_term(job, self._office.fence)
        await self._start(job)
        if past is not None:
            await self._office.cluster.kill([past])
        self._acked = None

    async def _take(self, job: JobRow, snapshot: JobSnapshot) -> None:
        self.snapshot = snapshot
        self._acked = await self._office.store.fold(snapshot, self._office.fence)
        if snapshot.outcome is not None:
            await self.register_checkpoints()
        job = await self._move(job, moves(job.state, snapshot))
        if job.state not in PLACED_STATES:
            await self._office.cluster.end_controller(self._key, snapshot.term)

    async def _give_up(self, job: JobRow, failure: Failure, remedy: str | None = None) -> None:
        reason = failure.reason if failure.reason in _OWN_REASONS else Reason.CONTROLLER_ERROR
        log.warning("job failed", job=job.id, attempt=job.attempt, why=failure.message)
        to = JobState.CANCELLED if job.state is JobState.CANCELLING else JobState.FAILED
        told = Explanation(summary=f"It failed: {failure.message}", remedy=remedy) if to is JobState.FAILED else None
        await self._move(job, (Step(to, Transition(reason=reason, explanation=told, failure=failure)),))
        with contextlib.suppress(ControllerLostError, ControllerFaultError):
            # It takes its workers with it, where it still can.
            await self._office.cluster.end_controller(self._key, job.term)
        with contextlib.suppress(ControllerLostError):
            await self._office.cluster.kill([controller_name(self._key, job.term)])

    async def _move(self, job: JobRow, steps: tuple[Step, ...]) -> JobRow:
        for step in steps:
            log.info("job moves", job=job.id, attempt=job.attempt, source=job.state, to=step.to)
            job = await self._office.store.transition(job, step.to, step.change, self._office.fence)
        return job


MISSING = "Do what it says of what is missing, and retry the job; or submit it anew without that."

_OWN_REASONS = frozenset({Reason.USER_ERROR, Reason.BUNDLE_INVALID})


def direction_of(job: JobRow, offer: Offer, *, is_leaving: bool) -> Direction:
    """The row's desired state in the controller's words."""
    scale, wants = job.scale, wanted_workers(job)
    is_users = scale.pinned is not None or bool(scale.reason)
    goal = effective_goal(job.goal, is_leaving=is_leaving)
    if goal is RunGoal.PAUSE and job.goal is RunGoal.RUN:
        return Direction(goal=goal, num_workers=wants, reason="the service is being stopped")
    if goal is not RunGoal.RUN:  # who asked for a size, and why, has nothing to do with it
        return Direction(goal=goal, num_workers=wants, actor="user")
    if offer.why_smaller and scale.pinned is None:
        return Direction(goal=goal, num_workers=wants, num_offered=wants, actor="service", reason=offer.why_smaller)
    return Direction(
        goal=goal,
        num_workers=wants,
        num_offered=0 if scale.pinned is not None else max(wants, offer.num_offered),
        actor=scale.actor if is_users else "service",
        reason=scale.reason or (f"{wants} workers were asked for" if is_users else "what is free"),
    )
