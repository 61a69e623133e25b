"""One leader at work: every tick compares rows with the cluster and brings the cluster nearer to the rows."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import structlog

from service import queue
from service.avoidance import WINDOW_S, avoided, suspects, usable
from service.folders import jobs_folder
from service.ports import ClusterLostError
from service.reconciler.orphans import Suspects, orphaned_actors
from service.reconciler.pursuit import Office, Pursuit, wanted_workers
from service.reconciler.sight import StorageSight
from service.records import ClusterView, Duty, JobRow, NodeMark
from service.states import PLACED_STATES, JobState
from service.store.port import FencedOutError, StaleRowError, TransitionError
from workers.control.names import parse_name
from workers.status import AvoidedNode

log = structlog.get_logger("concertina.reconciler")

VIEW_S = 2.0
STORED_VIEW_S = 5.0
REAP_S = 10.0
BRISK_S = 0.1


class Reconciler:
    """``scratch`` is where this machine's workers keep their logs. Not for several tasks at once.

    With ``sight`` only nodes that see the storage take workers.
    """

    def __init__(self, office: Office, scratch: Path, sight: StorageSight | None = None) -> None:
        self._office, self._scratch, self._sight = office, scratch, sight
        self._pursuits: dict[str, Pursuit] = {}
        self._steps: dict[str, asyncio.Task[None]] = {}
        self._view: ClusterView | None = None
        self._marks: dict[str, NodeMark] = {}
        self._avoid: tuple[AvoidedNode, ...] = ()
        self._viewed_s = self._stored_view_s = self._reaped_s = float("-inf")
        self._suspects = Suspects()
        self.is_leaving = False
        self.is_brisk = False

    async def begin(self) -> None:
        """Take over from a predecessor: find out which jobs have nothing left on this cluster.

        Raises ClusterLostError, FencedOutError.
        """
        found = {p.key for name in await self._office.cluster.names() if (p := parse_name(name)) is not None}
        alive = {(key.job_id, key.attempt) for key in found}
        for job in await self._placed():
            pursuit = self._pursuits[job.id] = Pursuit(self._office, job)
            await pursuit.register_checkpoints()
            # One that was only starting is simply started again.
            if (job.id, job.attempt) not in alive and job.state is not JobState.STARTING:
                await self._guarded(job.id, pursuit.lose(job))

    async def tick(self) -> int:
        """One look at everything; the number of placed jobs.

        Raises ClusterLostError, FencedOutError.
        """
        self._reraise()
        now_s = time.monotonic()
        rows = await self._office.store.live_jobs()
        placed = [job for job in rows if job.state in PLACED_STATES]
        queued = [job for job in rows if job.state is JobState.QUEUED]
        self._forget_all_but(placed)
        await self._look(now_s, has_waiting=bool(queued))
        if not self.is_leaving:
            await self._place(queued, placed)
        for job in placed:
            self._follow(job)
        if now_s - self._reaped_s >= REAP_S:
            self._reaped_s = now_s
            await self._reap(now_s)
        self.is_brisk = any(p.is_brisk(job) for job in placed if (p := self._pursuits.get(job.id)) is not None)
        return len(placed)

    async def settle(self, timeout_s: float) -> None:
        """Wait for the steps that are under way."""
        if self._steps:
            await asyncio.wait(self._steps.values(), timeout=timeout_s)

    async def _placed(self) -> list[JobRow]:
        return [job for job in await self._office.store.live_jobs() if job.state in PLACED_STATES]

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
        self._steps[job_id] = asyncio.create_task(self._guarded(job_id, work))

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

    async def _look(self, now_s: float, *, has_waiting: bool) -> None:
        if has_waiting or now_s - self._viewed_s >= VIEW_S:
            view = await self._office.cluster.view()
            self._viewed_s = now_s
            if view != self._view or now_s - self._stored_view_s >= STORED_VIEW_S:
                await self._office.store.put_cluster(view, self._office.fence)
                self._stored_view_s = now_s
            self._view = view
            await self._watch_nodes(view)
        self._marks = await self._office.store.node_marks()
        nodes = self._view.nodes if self._view else ()
        self._avoid = avoided(nodes, self._marks)
        if self._sight is not None:
            self._avoid += self._sight.avoided(usable(nodes, self._avoid), now_s)

    async def _watch_nodes(self, view: ClusterView) -> None:
        """Quarantine nodes that lose workers again and again, and forget words on those that are gone."""
        store, fence, now = self._office.store, self._office.fence, time.time()
        await store.forget_nodes([node.node_id for node in view.nodes if node.is_alive], fence)
        for suspect in suspects(view.nodes, self._marks, await store.losses(now - WINDOW_S), now):
            node, why = suspect.node, suspect.reason
            if suspect.is_last:
                text = f"Node {node.name} stays in use although {why}: there is no other to use."
                await store.note_on_node(node.node_id, text, fence)
                continue
            log.warning("node quarantined", node=node.node_id, why=why)
            mark = NodeMark(node_id=node.node_id, duty=Duty.QUARANTINED, actor="service", reason=why, since=now)
            await store.quarantine(mark, f"Node {node.name} is quarantined: {why}.", fence)

    async def _place(self, queued: list[JobRow], placed: list[JobRow]) -> None:
        nodes = usable(self._view.nodes if self._view else (), self._avoid)
        running = [self._running(job) for job in placed]
        waiting = [queue.waiting(job) for job in queued]
        grants = {grant.job_id: grant.num_workers for grant in queue.admit(waiting, running, nodes)}
        hopeless = 0
        for job, waits in zip(queued, waiting, strict=True):
            if job.id in grants:
                await self._admit(job, grants[job.id])
            else:
                told = queue.explain(waits, nodes)
                hopeless += told is not None
                if told is not None or job.explanation is not None:
                    await self._guarded(job.id, self._office.store.set_explanation(job, told, self._office.fence))
        more = queue.grow(running, nodes) if hopeless == len(queued) else []
        grown = {grant.job_id: grant.num_workers for grant in more}
        for job in placed:
            desired = grown.get(job.id, wanted_workers(job))
            await self._guarded(job.id, self._office.store.set_desired(job, desired, self._office.fence))

    def _running(self, job: JobRow) -> queue.Running:
        pursuit = self._pursuits.get(job.id)
        placed = pursuit.placed if pursuit and pursuit.attempt == job.attempt else {}
        # Who is to leave a node has a claim on room elsewhere.
        shunned = {node.node_id for node in self._avoid}
        return queue.running(job, {node_id: n for node_id, n in placed.items() if node_id not in shunned})

    async def _admit(self, job: JobRow, num_workers: int) -> None:
        """The intent is written before anything is started, so that a crash leaves nothing unknown."""
        try:
            job = await self._office.store.admit(job, num_workers, self._office.fence)
        except (StaleRowError, TransitionError):
            return
        log.info("job admitted", job=job.id, attempt=job.attempt, workers=num_workers)
        pursuit = self._pursuits[job.id] = Pursuit(self._office, job)
        self._spawn(job.id, pursuit.begin(job))

    async def _reap(self, now_s: float) -> None:
        """Remove what belongs to no job: names first, rows second, and only what was seen so twice."""
        names = await self._office.cluster.names()
        folders = await asyncio.to_thread(_folders, jobs_folder(self._office.storage), self._scratch / "logs")
        rows = {job.id: job for job in await self._office.store.live_jobs()}
        known = await self._office.store.job_ids()
        if not known:
            return  # more likely a database that is not ours than one without jobs
        orphans = orphaned_actors(names, rows)
        orphans |= {str(folder) for folder in folders if folder.name not in known}
        ripe = self._suspects.ripe(orphans, now_s)
        for path in [Path(thing) for thing in ripe if thing.startswith("/")]:
            log.warning("removing a folder of no job", path=str(path))
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
        if actors := [thing for thing in ripe if not thing.startswith("/")]:
            log.warning("ending actors of no job", names=actors)
            await self._office.cluster.kill(actors)


def _folders(*roots: Path) -> list[Path]:
    return [folder for root in roots if root.is_dir() for folder in root.iterdir() if folder.is_dir()]
