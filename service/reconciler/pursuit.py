"""Following one placed job: start its controller, direct it, store what it tells, move its state."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog

from service.cost import Prices
from service.folders import checkpoints_place
from service.patience import answered
from service.ports import (
    ClusterLostError,
    ClusterPort,
    ControllerFaultError,
    ControllerLostError,
    ControllerSilentError,
)
from service.reconciler.answers import has_told_all, is_news, stands
from service.reconciler.directions import Offer, direction_of, placed
from service.reconciler.launching import Launching
from service.reconciler.listing import Listing
from service.reconciler.news import News
from service.reconciler.starting import Backoff, Starts, storage_away
from service.reconciler.verdicts import Step, lost, moves
from service.records import Explanation, JobRow, Transition
from service.states import PLACED_STATES, JobState
from service.store.port import ReconcilerStore
from workers.assignment import SWEEP_LABEL, JobKey
from workers.control.launch import Launch
from workers.control.names import controller_name
from workers.errors import Failure, JobError, Reason, failure_of
from workers.retention import remove_unfinished
from workers.status import Acknowledged, AvoidedNode, Direction, JobSnapshot, RunGoal, RunPhase
from workers.storage_urls import open_storage

log = structlog.get_logger("concertina.reconciler")

MAX_ANSWERS = 5
"""Of a controller, on end, before the row is read again."""

PATIENCE_S = 0.25
"""So long a command may have to wait, too."""

STANDING_S = 0.1
"""So often those whose workers wait for a word are asked how they are."""

STORED_S = 0.5
"""What was told is stored again after so long, also where nothing is new: since when it is so is on the page."""

LISTED_S = 60.0
"""After so long with new checkpoints storage is looked at again: those that had to go for them are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """What a leader works with; ``fence`` goes with every write.

    ``max_demand_workers``: an autoscaler is asked for room for so many workers more, at most.
    ``spares_per_node``: so many processes wait on a node with room. ``place_s``: how long it is tried to start
    a controller that gives no snapshot. ``news`` hears of what can go on at once. ``clock`` gives Unix seconds, as
    the store's; ``monotonic_s`` is the clock of all pauses between tries.
    """

    store: ReconcilerStore
    cluster: ClusterPort
    launching: Launching
    listing: Listing
    fence: int
    storage: str
    liveness_s: float
    place_s: float
    max_demand_workers: int
    spares_per_node: int
    prices: Prices
    news: News = field(default_factory=News)
    clock: Callable[[], float] = time.time
    monotonic_s: Callable[[], float] = time.monotonic


class Pursuit:
    """One job, from its admission until it is placed no longer."""

    def __init__(self, office: Office, job: JobRow) -> None:
        self._office = office
        self._key = JobKey(job_id=job.id, attempt=job.attempt)
        self._acked: Acknowledged | None = None
        self._acked_term = 0
        self._starts = Starts()
        self._storage = Backoff()
        self._is_unstarted = self._is_lost = self._is_unlisted = False
        self._stored_s = self._told_s = self._listed_s = -math.inf
        self._told: Direction | None = None
        self._has_more = True
        self.snapshot: JobSnapshot | None = None
        self._num_directed = 0
        self.offer = Offer()

    @property
    def attempt(self) -> int:
        return self._key.attempt

    @property
    def places(self) -> tuple[str, ...]:
        """The nodes of its workers by rank, as last told; those without a rank come last."""
        views = self.snapshot.workers if self.snapshot else ()
        return tuple(v.node_id for v in sorted(views, key=lambda v: math.inf if v.rank is None else v.rank))

    def num_asked(self, num_workers: int) -> int | None:
        """The size that the job asked for when it was directed to that one; None where it was not yet.

        An answer to an earlier word must not undo the later one: each would bring the other back.
        """
        if self.snapshot is None or self._num_directed != num_workers:
            return None
        return self.snapshot.num_asked

    def is_brisk(self, job: JobRow) -> bool:
        """Whether something is about to happen, so that it pays to look again soon."""
        snapshot, now_s = self.snapshot, self._office.monotonic_s()
        if self._starts.is_paused(now_s) or not self._storage.is_due(now_s):
            return False
        if snapshot is None or job.state in (JobState.PAUSING, JobState.CANCELLING):
            return True
        is_last_round = snapshot.total_samples is not None and snapshot.cursor >= snapshot.total_samples
        return snapshot.phase in (RunPhase.STOPPING, RunPhase.ENDED) or is_last_round

    def _has_told(self, job: JobRow, direction: Direction) -> bool:
        """Whether its workers wait for a word, have told all, and this is no word: to say it again can wait."""
        if self.snapshot is None or self._has_more or job.goal is not RunGoal.RUN or not stands(self.snapshot):
            return False
        return direction == self._told and self._office.monotonic_s() - self._told_s < STANDING_S

    def _patience_s(self, job: JobRow) -> float:
        """How long a controller may wait with its answer for something to happen: where that is soon.

        Where it waits for a word from here, the word must not wait for its answer.
        """
        if self.snapshot is not None and job.goal is RunGoal.RUN and stands(self.snapshot):
            return 0.0
        is_short = SWEEP_LABEL in job.spec.labels
        is_starting = self.snapshot is not None and self.snapshot.phase is RunPhase.STARTING
        return PATIENCE_S if is_short or is_starting or self.is_brisk(job) else 0.0

    async def begin(self, job: JobRow, *, is_leaving: bool, avoid: tuple[AvoidedNode, ...]) -> None:
        """Start the controller of the row's term and direct it for the first time; raises as ``step``."""
        if await self._start(job):
            await self.step(job, is_leaving=is_leaving, avoid=avoid)

    async def step(self, job: JobRow, *, is_leaving: bool, avoid: tuple[AvoidedNode, ...]) -> None:
        """Direct the controller and store its answer; a few times on end where it is about to be over.

        Raises ClusterLostError, FencedOutError, StaleRowError (a command came in between: look again).
        """
        row: JobRow | None = job
        for _ in range(MAX_ANSWERS):
            if row is not None:
                row = await self._step(row, is_leaving=is_leaving, avoid=avoid)
        if row is not None:
            self._office.news.tell()

    async def _step(self, job: JobRow, *, is_leaving: bool, avoid: tuple[AvoidedNode, ...]) -> JobRow | None:
        """The row to go on with at once; None where the next look says how."""
        if self._is_lost or self._is_unstarted:
            await (self.lose(job) if self._is_lost else self._start_later(job))
            return None
        office = self._office
        acked = await self._stored_for(job)
        goal = direction_of(job, self.offer, is_leaving=is_leaving)
        settings = placed(job.settings, office.storage)
        direction = replace(goal, avoid=avoid, saves=job.saves, until=job.until, settings=settings)
        if self._has_told(job, direction):
            return None
        self._told, self._told_s = direction, office.monotonic_s()
        try:
            snapshot = await office.cluster.direct(
                self._key, job.term, direction, acked, office.liveness_s, self._patience_s(job)
            )
        except ControllerLostError as error:
            await self._succeed(job, str(error), past=None)
        except ControllerSilentError as error:
            await self._succeed(job, str(error), past=controller_name(self._key, job.term))
        except ControllerFaultError as error:
            await self._give_up(job, replace(failure_of(error), reason=Reason.CONTROLLER_ERROR))
        else:
            if snapshot is None:
                await self._start_later(job, "it was never told what to do")
            else:
                self._num_directed, self._told_s = direction.num_workers, office.monotonic_s()
                return await self._take(job, snapshot)
        return None

    async def _stored_for(self, job: JobRow) -> Acknowledged:
        """What to hand to the controller of the row's term; of a new one it is read under the fencing number.

        A controller does nothing until it is directed. One that was started after this leader had been succeeded never
        is, not by this one: the successor may have found none, and would store nothing of what it told.
        """
        if self._acked is None or self._acked_term != job.term:
            self._acked = await self._office.store.acknowledged(job.id, job.attempt, self._office.fence)
            self._acked_term = job.term
        return self._acked

    async def lose(self, job: JobRow) -> None:
        """Nothing of the job is left on the cluster: move it to where it can go on from its checkpoint.

        While storage cannot be read a job that is to go on stays where it is, and ``step`` tries again.
        """
        self._is_lost = True
        if await self.register_checkpoints(job) or job.goal is not RunGoal.RUN:
            await self._move(job, lost(job.state))

    def put_off(self) -> None:
        """Storage did not answer just now: ``step`` asks it what ``register_checkpoints`` would have."""
        self._storage, self._is_unlisted = self._storage.failed(self._office.monotonic_s()), True

    async def register_checkpoints(self, job: JobRow) -> bool:
        """Bring the list up to what is in storage.

        False where that cannot be read: its owner is told, and ``step`` tries again.
        """
        office = self._office
        if not self._storage.is_due(office.monotonic_s()):
            office.listing.put_off(job.id)
            return False
        try:
            await office.listing.bring_up(job.id)
        except OSError as error:
            self._is_unlisted = True
            await self._wait_for_storage(job, error)
            return False
        self._storage, self._is_unlisted, self._listed_s = Backoff(), False, office.monotonic_s()
        return True

    async def _start(self, job: JobRow, seen: str = "") -> bool:
        """Start the controller of the row's term; ``seen`` is how it was found. False where that came to nothing."""
        if not await self._may_start(job, seen):
            return False
        launch = await self._launch(job)
        self._is_unstarted = launch is None
        return launch is not None and await self._put_in_office(job, launch)

    async def _start_later(self, job: JobRow, seen: str = "") -> None:
        """Start it, and direct it at the next look."""
        if await self._start(job, seen):
            self._office.news.tell()

    async def _succeed(self, job: JobRow, seen: str, *, past: str | None) -> None:
        """Put a controller of a new term in office; it adopts the workers. The old one is ended after."""
        if not (self._office.cluster.has_node() and await self._office.cluster.is_reachable()):
            raise ClusterLostError(seen)
        if not await self._may_start(job, seen):
            return
        # Resolved first, so that no term is spent while storage is away.
        launch = await self._launch(replace(job, term=job.term + 1))
        if launch is None:
            return
        log.warning("new controller", job=job.id, attempt=job.attempt, term=job.term + 1, why=seen)
        job = await self._office.store.new_term(job, self._office.fence)
        if await self._put_in_office(job, launch):
            self._office.news.tell()
        if past is not None:
            await self._office.cluster.kill([past])

    async def _may_start(self, job: JobRow, seen: str) -> bool:
        """Whether to start a controller now.

        What was tried in vain is told. What was tried so for too long, or is not wanted any more, is ended.
        """
        now_s = self._office.monotonic_s()
        was_heard_of = self.snapshot is not None or job.is_heard_of
        num_vain = self._starts.backoff.num_failed
        if job.goal is not RunGoal.RUN and not was_heard_of and num_vain + self._storage.num_failed > 0:
            # Nobody told of anything to save; workers of a controller that nobody heard may have saved all the same.
            await self._remove(job)
            await self.lose(job)
            return False
        if num_vain > 0:
            self._starts = starts = self._starts.found(seen)
            told = starts.explanation()
            if starts.is_hopeless(now_s, self._office.place_s, has_workers=was_heard_of):
                await self._give_up(job, starts.failure(), told.remedy)
                return False
            await self._tell(job, told)
        return self._starts.backoff.is_due(now_s) and self._storage.is_due(now_s)

    async def _launch(self, job: JobRow) -> Launch | None:
        """What a controller must know; None where the attempt has ended for it, or storage is waited for.

        A controller looks for checkpoints first of all, so none is started that would find no storage.
        """
        if not await self.register_checkpoints(job):
            return None
        try:
            return await self._office.launching.launch(job)
        except JobError as error:
            # What the spec names is not there: the words are for its owner, the lines of our own code are not.
            await self._give_up(job, replace(failure_of(error), traceback=""), MISSING)
            return None
        except OSError as error:
            await self._wait_for_storage(job, error)
            return None

    async def _put_in_office(self, job: JobRow, launch: Launch) -> bool:
        began_s, wrong, self._acked = self._office.monotonic_s(), "", None
        try:
            await self._office.cluster.start_controller(self._key, job.term, launch)
        except (ControllerLostError, ControllerSilentError, ControllerFaultError) as error:
            wrong = str(error)
            log.warning("controller did not start", job=job.id, term=job.term, error=wrong)
        self._starts = self._starts.after(began_s, self._office.monotonic_s(), wrong)
        return not wrong

    async def _wait_for_storage(self, job: JobRow, error: OSError) -> None:
        self._storage = self._storage.failed(self._office.monotonic_s())
        self._starts = self._starts.forgiven()  # a time without storage is not held against controllers
        log.warning("storage cannot be read", job=job.id, attempt=job.attempt, error=str(error))
        await self._tell(job, storage_away(self._office.storage, error))

    async def _tell(self, job: JobRow, told: Explanation | None) -> None:
        await self._office.store.set_explanations([(job, told)], self._office.fence)

    async def _take(self, job: JobRow, snapshot: JobSnapshot) -> JobRow | None:
        now_s = self._office.monotonic_s()
        brings = self._acked is None or is_news(snapshot, self.snapshot)
        is_due = brings or now_s - self._stored_s >= STORED_S
        self.snapshot, self._has_more = snapshot, brings and not has_told_all(snapshot)
        self._starts = self._starts.heard(snapshot.cursor, now_s)
        if is_due:
            self._acked = await self._office.store.fold(snapshot, self._office.fence)
            self._stored_s = now_s
        is_full = bool(snapshot.checkpoints) and now_s - self._listed_s >= LISTED_S
        if snapshot.outcome is not None or self._is_unlisted or is_full:
            is_listed = await self.register_checkpoints(job)
            if not is_listed and snapshot.outcome is not None and job.goal is RunGoal.RUN:
                return None
        if not self._is_unlisted:
            await self._tell(job, None)  # what stood in its way stands there no longer
        job = await self._move(job, moves(job.state, snapshot))
        is_ending = job.goal is not RunGoal.RUN or snapshot.phase in (RunPhase.STOPPING, RunPhase.ENDED)
        goes_on = job.state in PLACED_STATES and brings and is_ending
        if (self.is_brisk(job) and not goes_on) or (is_due and stands(snapshot)):
            self._office.news.tell()
        if job.state not in PLACED_STATES:
            await self._office.cluster.end_controller(self._key, snapshot.term)
        return job if goes_on else None

    async def _give_up(self, job: JobRow, failure: Failure, remedy: str | None = None) -> None:
        reason = failure.reason if failure.reason in _OWN_REASONS else Reason.CONTROLLER_ERROR
        log.warning("job failed", job=job.id, attempt=job.attempt, why=failure.message)
        to = JobState.CANCELLED if job.state is JobState.CANCELLING else JobState.FAILED
        told = Explanation(summary=f"It failed: {failure.message}", remedy=remedy) if to is JobState.FAILED else None
        await self._remove(job)
        await self.register_checkpoints(job)
        await self._move(job, (Step(to, Transition(reason=reason, explanation=told, failure=failure)),))

    async def _remove(self, job: JobRow) -> None:
        with contextlib.suppress(ControllerLostError, ControllerFaultError, ControllerSilentError):
            # It takes its workers with it, where it still can.
            await self._office.cluster.end_controller(self._key, job.term)
        with contextlib.suppress(ControllerLostError):
            await self._office.cluster.kill([controller_name(self._key, job.term)])

    async def _move(self, job: JobRow, steps: tuple[Step, ...]) -> JobRow:
        if any(step.to not in PLACED_STATES for step in steps):
            await self._tidy()
        for step in steps:
            log.info("job moves", job=job.id, attempt=job.attempt, source=job.state, to=step.to)
            job = await self._office.store.transition(job, step.to, step.change, self._office.fence)
            self._office.news.tell()
        return job

    async def _tidy(self) -> None:
        """Before the end of the attempt is told, as from then on another may save, and may as well never come.

        It stays where storage gives no answer; one that has just given none is not waited for again.
        """
        if not self._storage.is_due(self._office.monotonic_s()):
            return
        place = open_storage(checkpoints_place(self._office.storage, self._key.job_id), root=self._office.storage)
        with contextlib.suppress(OSError):
            await answered(lambda: remove_unfinished(place, self._key.attempt))


MISSING = "Do what it says of what is missing, and retry the job; or submit it anew without that."

_OWN_REASONS = frozenset({Reason.USER_ERROR, Reason.BUNDLE_INVALID})
