"""One leader at work: every tick compares rows with the cluster and brings the cluster nearer to the rows."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from service import demand, queue, spares
from service.avoidance import avoided, usable
from service.ports import ClusterLostError
from service.reconciler.directions import Offer
from service.reconciler.promoting import Promoting
from service.reconciler.pursuit import Office, Pursuit
from service.reconciler.reaper import Reaper
from service.reconciler.searching import Searching
from service.reconciler.sight import StorageSight
from service.reconciler.telling import Teller
from service.reconciler.watching import Watching
from service.records import ClusterView, Duty, Explanation, JobRow, NodeMark, NodeView
from service.scaling_history import happened
from service.states import PLACED_STATES, JobState
from service.store.port import FencedOutError, StaleRowError, TransitionError
from workers.control.names import parse_name
from workers.status import AvoidedNode

log = structlog.get_logger("concertina.reconciler")

VIEW_S = 2.0
STORED_VIEW_S = 5.0
SHOWN_S = 0.5
"""Pages need not show all that is free for an instant."""

BRISK_S = 0.1
ROOM_S = 0.02
"""So soon it is looked again whether Ray's head knows of room that a job has left, while others wait for room."""

ROOM_KNOWN_S = 0.25
"""By then it does: its nodes tell it every tenth of a second at the latest."""

LINE = 100
"""How many of the queue are looked at in one tick: those behind them are not placed before them."""

REAPER = "reaper"
"""Among the steps, which have the names of jobs."""


class Reconciler:
    """With ``sight`` only nodes that see the storage take workers. Not for several tasks at once."""

    def __init__(self, office: Office, reaper: Reaper, sight: StorageSight | None = None) -> None:
        self._office, self._reaper, self._sight = office, reaper, sight
        self._pursuits: dict[str, Pursuit] = {}
        self._steps: dict[str, asyncio.Task[None]] = {}
        self._view: ClusterView | None = None
        self._others: Mapping[str, Mapping[str, float]] = {}
        self._marks: Mapping[str, NodeMark] = {}
        self._avoid: tuple[AvoidedNode, ...] = ()
        self._stored: ClusterView | None = None
        self._viewed_s = self._stored_s = self._left_s = float("-inf")
        self._placed_ids: frozenset[str] = frozenset()
        self._teller = Teller(office.cluster, office.max_demand_workers)
        self._searching = Searching(office)
        self._promoting = Promoting(office)
        self._watching = Watching(office)
        self._max_queued = LINE
        self._stuck: frozenset[str] = frozenset()
        self.is_leaving = False
        self.is_brisk = False

    async def begin(self) -> None:
        """Take over from a predecessor: find out which jobs have nothing left on this cluster.

        Raises ClusterLostError, FencedOutError.
        """
        found = {p.key for name in await self._office.cluster.names() if (p := parse_name(name)) is not None}
        alive = {(key.job_id, key.attempt) for key in found}
        is_answered = True
        for job in await self._placed():
            pursuit = self._pursuits[job.id] = Pursuit(self._office, job)
            if is_answered:
                is_answered = await pursuit.register_checkpoints(job)
            else:
                pursuit.put_off()  # each waits by itself, as all that comes later would wait here
            # Of an attempt that nobody has heard of only the intent is there: it is carried out now.
            is_intent = job.state is JobState.STARTING and not job.is_heard_of
            if (job.id, job.attempt) not in alive and not is_intent:
                await self._guarded(job.id, pursuit.lose(job))

    async def tick(self) -> int:
        """One look at everything; the number of placed jobs.

        Raises ClusterLostError, FencedOutError.
        """
        self._office.news.take()
        self._reraise()
        now_s = time.monotonic()
        # Those that can never start hold nobody up, so that many more are looked at.
        survey = await self._office.store.survey(self._max_queued)
        rows, self._marks = survey.jobs, survey.marks
        placed = [job for job in rows if job.state in PLACED_STATES]
        queued = [job for job in rows if job.state is JobState.QUEUED]
        self._forget_all_but(placed)
        await self._look(now_s, rows)
        if not self.is_leaving:
            await self._searching.tick(survey.sweeps, self._stuck)
            await self._promoting.tick(survey.promoting)
            await self._place(queued, placed)
        self._await_room(placed, queued, now_s)
        for job in placed:
            self._follow(job)
        if REAPER not in self._steps:
            # Beside the ticks: storage may take long to answer, or hang.
            self._spawn(REAPER, self._reaper.look(now_s))
        is_brisk = any(p.is_brisk(job) for job in placed if (p := self._pursuits.get(job.id)) is not None)
        self.is_brisk = is_brisk or self._searching.is_brisk or self._promoting.is_brisk
        return len(placed)

    async def end(self) -> None:
        """Of the demand and of the spares nothing stays behind."""
        with contextlib.suppress(ClusterLostError):
            await self._teller.withdraw()
            await self._office.cluster.keep_spares({})

    async def settle(self, timeout_s: float) -> None:
        """Wait for the steps that are under way."""
        if self._steps:
            await asyncio.wait(self._steps.values(), timeout=timeout_s)
        await self._searching.settle(timeout_s)

    async def _placed(self) -> list[JobRow]:
        return [job for job in await self._office.store.live_jobs(max_queued=0) if job.state in PLACED_STATES]

    def _await_room(self, placed: list[JobRow], queued: list[JobRow], now_s: float) -> None:
        ids = frozenset(job.id for job in placed)
        if self._placed_ids - ids:
            self._left_s = now_s
        self._placed_ids = ids
        if now_s - self._left_s < ROOM_KNOWN_S and any(not self._is_admitted(job) for job in queued):
            asyncio.get_running_loop().call_later(ROOM_S, self._office.news.tell)

    def _is_admitted(self, queued: JobRow) -> bool:
        pursuit = self._pursuits.get(queued.id)
        return pursuit is not None and pursuit.attempt > queued.attempt

    def _forget_all_but(self, placed: list[JobRow]) -> None:
        attempts = {job.id: job.attempt for job in placed}
        for job_id, pursuit in list(self._pursuits.items()):
            if attempts.get(job_id) != pursuit.attempt and job_id not in self._steps:
                del self._pursuits[job_id]

    def _follow(self, job: JobRow) -> None:
        if job.id not in self._steps:
            pursuit = self._pursuits.setdefault(job.id, Pursuit(self._office, job))
            if pursuit.attempt == job.attempt:
                self._spawn(job.id, pursuit.step(job, is_leaving=self.is_leaving, avoid=self._avoid))

    def _spawn(self, job_id: str, work: Coroutine[Any, Any, None]) -> None:
        self._steps[job_id] = step = asyncio.create_task(self._guarded(job_id, work))
        # What one raises after the last tick concerns nobody any more.
        step.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _guarded(self, job_id: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (StaleRowError, TransitionError) as error:
            log.info("decided anew", job=job_id, why=str(error))

    def _reraise(self) -> None:
        """Drop finished steps. What one raised of general interest goes to the caller, other faults to the log."""
        for job_id, task in [item for item in self._steps.items() if item[1].done()]:
            del self._steps[job_id]
            error = task.exception()
            if isinstance(error, ClusterLostError | FencedOutError):
                raise error
            if error is not None:
                log.error("step failed", job=job_id, exc_info=error)

    async def _look(self, now_s: float, rows: Sequence[JobRow]) -> None:
        """At the cluster: now and then at all of it, while jobs wait at what is free at each tick."""
        is_thorough = now_s - self._viewed_s >= VIEW_S
        if is_thorough or any(job.state is JobState.QUEUED for job in rows):
            before, self._view = self._view, self._with_wishes(await self._office.cluster.view())
            await self._store_view(self._view, now_s)
            if before is not None:
                await self._note_scaling(before, self._view, rows)
            self._marks = await self._watching.settled(self._view, self._marks)
        if is_thorough and self._view is not None:
            self._viewed_s = now_s
            self._marks = await self._watching.judged(self._view, sum(job.state in PLACED_STATES for job in rows))
        nodes = self._view.nodes if self._view else ()
        self._avoid = avoided(nodes, self._marks)
        if self._sight is not None:
            self._avoid += self._sight.avoided(usable(nodes, self._avoid), now_s)
        if is_thorough and self._view is not None:
            await self._keep_spares(self._view)

    async def _store_view(self, view: ClusterView, now_s: float) -> None:
        age_s, stored = now_s - self._stored_s, self._stored
        is_other = stored is None or _without_free(view) != _without_free(stored)
        if is_other or age_s >= STORED_VIEW_S or (view != stored and age_s >= SHOWN_S):
            await self._office.store.put_cluster(view, self._office.fence)
            self._stored, self._stored_s = view, now_s

    async def _keep_spares(self, view: ClusterView) -> None:
        nodes = () if self.is_leaving else usable(view.nodes, self._avoid)
        number, has_autoscaler = self._office.spares_per_node, view.autoscaling is not None
        await self._office.cluster.keep_spares(spares.wanted(nodes, number, has_autoscaler=has_autoscaler))

    def _with_wishes(self, view: ClusterView) -> ClusterView:
        if view.autoscaling is None:
            return view
        return replace(view, autoscaling=replace(view.autoscaling, wanted_by=tuple(self._teller.demand.missing)))

    async def _note_scaling(self, before: ClusterView, view: ClusterView, rows: Sequence[JobRow]) -> None:
        for event in happened(before, view, {job.id: job.name for job in rows}):
            await self._office.store.note_on_cluster(event.node_id, event.text, self._office.fence)

    async def _place(self, queued: list[JobRow], placed: list[JobRow]) -> None:
        there = self._view.nodes if self._view else ()
        nodes = usable(there, self._avoid)
        running = [self._running(job) for job in placed]
        waiting, shut = [queue.waiting(job) for job in queued], self._shut()
        if queued:  # while nobody waits the view may be older than what is known of the workers
            self._others = queue.held_by_others(self._others, running, there)
        grants = {grant.job_id: grant.num_workers for grant in queue.admit(waiting, running, nodes, self._others)}
        for job in queued:
            if job.id in grants:
                await self._admit(job, grants[job.id])
        told = [
            (job, queue.explain(waits, there, self._avoid, shut))
            for job, waits in zip(queued, waiting, strict=True)
            if job.id not in grants
        ]
        still = [waits for waits in waiting if waits.job_id not in grants]
        stuck, is_whole = frozenset(job.id for job, why in told if why is not None), len(queued) < self._max_queued
        outlook = await self._tell_autoscaler(still, running, stuck, is_whole=is_whole)
        await self._office.store.set_explanations(self._with_nodes_asked_for(told, outlook), self._office.fence)
        has_room = is_whole and len(stuck) == len(queued)
        self._max_queued = LINE + len(stuck)
        self._stuck = stuck if nodes else frozenset()  # before the first node is there nobody is worse off than others
        resized = [*queue.adjust(running, nodes, may_grow=has_room), *queue.reclaim(still, running, nodes)]
        offered = self._offers(running, nodes, may_scale=not outlook.has_hope) if has_room else {}
        await self._resize(placed, {grant.job_id: grant for grant in resized}, offered, has_waiting=bool(still))

    async def _tell_autoscaler(
        self, waiting: list[queue.Waiting], running: list[queue.Running], stuck: frozenset[str], *, is_whole: bool
    ) -> demand.Outlook:
        view, now_s = self._view, time.monotonic()
        if view is None or view.autoscaling is None:
            return demand.Outlook()
        refused = self._teller.refused(waiting, now_s)
        line = demand.Line(jobs=waiting, stuck=stuck, refused=refused, is_whole=is_whole)
        outlook = demand.wanted(line, running, view.nodes, shut=self._shut(), bounds=self._teller.bounds)
        is_placing = any(len(job.places) < job.num_workers for job in running if not job.is_leaving)
        await self._teller.tell(outlook.demand, view.autoscaling, now_s, is_placing=is_placing)
        return outlook

    def _shut(self) -> frozenset[str]:
        return frozenset(node_id for node_id, mark in self._marks.items() if mark.duty is not Duty.ACTIVE)

    def _with_nodes_asked_for(
        self, told: list[tuple[JobRow, Explanation | None]], outlook: demand.Outlook
    ) -> list[tuple[JobRow, Explanation | None]]:
        """Who waits for nodes is told whether they may come, and not only that they are missing."""
        seen, most = self._view.autoscaling if self._view else None, self._teller.bounds.most
        missing, too_many = self._teller.demand.missing, outlook.too_many

        def explain(job_id: str, why: Explanation | None) -> Explanation | None:
            if seen is not None and job_id in missing:
                return demand.explain(missing[job_id], seen)
            if job_id in too_many:
                return demand.explain_too_many(too_many[job_id], most, why)
            return demand.explain_refused(why) if why is not None and job_id in outlook.refused else why

        return [(job, explain(job.id, why)) for job, why in told]

    def _offers(self, running: list[queue.Running], nodes: tuple[NodeView, ...], *, may_scale: bool) -> dict[str, int]:
        """What is free, and where nodes would come for those that train, some of these too."""
        offers = queue.offers(running, nodes)
        has_autoscaler = self._view is not None and self._view.autoscaling is not None
        if not has_autoscaler or not may_scale or self._teller.is_declined(time.monotonic()):
            return offers
        most = self._teller.bounds.now
        return {job.job_id: demand.offered(job, offers[job.job_id], most) for job in running if job.job_id in offers}

    async def _resize(
        self, placed: list[JobRow], grants: dict[str, queue.Grant], offered: dict[str, int], *, has_waiting: bool
    ) -> None:
        """Note the sizes to steer to, and what jobs may ask for besides."""
        for job in placed:
            grant = grants.get(job.id)
            desired = grant.num_workers if grant else queue.wanted_workers(job)
            await self._guarded(job.id, self._office.store.set_desired(job, desired, self._office.fence))
            if (pursuit := self._pursuit_of(job)) is not None:
                why = pursuit.offer.why_smaller if has_waiting else ""
                why = grant.reason if grant else why
                pursuit.offer = Offer(num_offered=offered.get(job.id, 0), why_smaller=why)

    def _pursuit_of(self, job: JobRow) -> Pursuit | None:
        pursuit = self._pursuits.get(job.id)
        return pursuit if pursuit is not None and pursuit.attempt == job.attempt else None

    def _running(self, job: JobRow) -> queue.Running:
        pursuit = self._pursuit_of(job)
        if pursuit is None or pursuit.snapshot is None:
            return queue.running(job)
        # Who is to leave a node has a claim on room elsewhere.
        shunned = {node.node_id for node in self._avoid}
        places = tuple(node_id for node_id in pursuit.places if node_id not in shunned)
        return queue.running(job, places, pursuit.num_asked(queue.wanted_workers(job)))

    async def _admit(self, job: JobRow, num_workers: int) -> None:
        """The intent is written before anything is started, so that a crash leaves nothing unknown."""
        try:
            job = await self._office.store.admit(job, num_workers, self._office.fence)
        except (StaleRowError, TransitionError):
            return
        log.info("job admitted", job=job.id, attempt=job.attempt, workers=num_workers)
        pursuit = self._pursuits[job.id] = Pursuit(self._office, job)
        self._spawn(job.id, pursuit.begin(job, is_leaving=self.is_leaving, avoid=self._avoid))


def _without_free(view: ClusterView) -> ClusterView:
    return replace(view, nodes=tuple(replace(node, free={}) for node in view.nodes))
