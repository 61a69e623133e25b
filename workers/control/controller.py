"""The controller of one attempt: carries out what ``turn`` decides, and decides nothing itself.

A detached actor that the reconciler starts and directs. Its name holds its term; it does nothing before
it was prepared and directed, and leaves as soon as it learns of a higher term.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ray

from workers.assignment import JobKey
from workers.control import ending, membership
from workers.control.answers import Answers
from workers.control.costs import row_of
from workers.control.decisions import (
    Action,
    AskHead,
    AskNode,
    ControllerState,
    HaltWorker,
    Inputs,
    KillWorker,
    Note,
    StartWorker,
    StopWorker,
    SupersedeGroup,
)
from workers.control.fleet import Fleet, Heard
from workers.control.launch import Launch
from workers.control.lookout import Lookout
from workers.control.pace import Pace
from workers.control.ray_fleet import RayFleet
from workers.control.ray_hands import RayHands
from workers.control.rendezvous import Rendezvous
from workers.control.restore import CheckpointSearch
from workers.control.retreat import retreat
from workers.control.snapshot import Progress, fold
from workers.control.telemetry import Telemetry
from workers.control.turn import begin, turn
from workers.errors import Failure, Reason, StaleTermError, failure_of
from workers.status import Acknowledged, CheckpointInfo, Direction, JobSnapshot, LogChunk, RunGoal, RunPhase
from workers.storage_urls import provide

END_S = 5.0
RETREAT_S = 30.0
"""Longer than a worker's last save may take."""


class JobController:
    """All methods run on one event loop. Tests give another ``make_fleet``.

    ``leave`` is what it does in place of ending its process, where that is not its own.
    """

    def __init__(
        self,
        key: JobKey,
        term: int,
        namespace: str,
        make_fleet: Callable[[Launch], Fleet] | None = None,
        leave: Callable[[], None] | None = None,
    ) -> None:
        self._key, self._term = key, term
        self._leave: Callable[[], None] = leave or ray.actor.exit_actor
        hands = RayHands(namespace, leave)
        self._make_fleet = make_fleet or (lambda launch: RayFleet(key, term, hands, launch))
        self._rendezvous = Rendezvous()
        self._launch: Launch | None = None
        self._course: Course | None = None

    async def prepare(self, term: int, launch: Launch) -> None:
        """Take over what the attempt needs; repeating it changes nothing."""
        self._check(term)
        provide(launch.storage.checkpoints, launch.storage.options)
        self._launch = self._launch or launch

    async def direct(
        self, term: int, direction: Direction, acked: Acknowledged, wait_s: float = 0.0
    ) -> JobSnapshot | None:
        """Take the row's desired state and what the store has; answer with the attempt as it is.

        None when it was never prepared. The first call begins the work. The outcome is told with the last of what the
        store has not acknowledged: whoever gets it stores that first. The answer waits up to ``wait_s`` for something
        that the last one did not tell, but not for records of a training that goes on.
        """
        self._check(term)
        if self._launch is None:
            return None
        if self._course is None:
            fleet = self._make_fleet(self._launch)
            self._course = Course(self._key, term, self._launch, fleet, self._rendezvous)
            self._course.begin(direction, acked)
        self._course.direct(direction, acked)
        return await self._course.told(wait_s)

    async def end(self, term: int) -> None:
        """End this process, and its workers where any are left; the reconciler calls it when the job has ended."""
        self._check(term)
        if self._course is not None:
            await self._course.finish()
        self._leave()

    async def abandon(self) -> None:
        """Do nothing any more, as if killed: where the process is another's. The workers train on."""
        if self._course is not None:
            await self._course.cancel()
            self._course.fleet.abandon()
        self._leave()

    async def bundle(self) -> list[Any]:
        """One reference to the bundle's bytes for a worker that an earlier controller started."""
        assert self._course is not None
        return await self._course.fleet.bundle()

    async def kv_set(self, group: str, key: str, value: bytes) -> None:
        """See ``Rendezvous.set``."""
        self._rendezvous.set(group, key, value)

    async def kv_get(self, group: str, key: str, timeout_s: float) -> bytes:
        """See ``Rendezvous.get``."""
        return await self._rendezvous.get(group, key, timeout_s)

    async def kv_add(self, group: str, key: str, amount: int) -> int:
        """See ``Rendezvous.add``."""
        return self._rendezvous.add(group, key, amount)

    async def kv_check(self, group: str, keys: list[str]) -> bool:
        """See ``Rendezvous.check``."""
        return self._rendezvous.check(group, keys)

    def _check(self, term: int) -> None:
        if term != self._term:
            raise StaleTermError(min(term, self._term), max(term, self._term))


class Course:
    """The attempt under way: one turn after another until it has an outcome."""

    def __init__(self, key: JobKey, term: int, launch: Launch, fleet: Fleet, rendezvous: Rendezvous) -> None:
        self.fleet = fleet
        self._launch = launch
        self._rendezvous = rendezvous
        self._state = begin(key, term, launch.spec, launch.settings, time.monotonic())
        self._pace = Pace()
        self._progress = Progress()
        self._crash: Failure | None = None
        self._has_left = False
        self._rested: frozenset[str] = frozenset()
        storage = launch.storage
        self._lookout = Lookout(CheckpointSearch(storage.checkpoints, launch.restart_after, storage.root))
        self._tails: set[asyncio.Task[None]] = set()
        self._turned = asyncio.Event()
        self._answers = Answers(is_short=launch.is_trial)

    def begin(self, direction: Direction, acked: Acknowledged) -> None:
        """Start turning."""
        self._direction = direction
        self._acked = acked
        # Where nobody is left to adopt, the next start must not take the number of a stored lineage.
        judged = replace(self._state.compressing, judged=acked.exchange)
        self._state = replace(self._state, furthest=acked.rounds, compressing=judged)
        self._progress = Progress(has_trained=acked.rounds > (0, 0))
        self._telemetry = Telemetry(self._launch.spec.batch.global_size, acked)
        self._answers.told(self._fold(), self._telemetry.num_news)  # that nothing has happened yet is no news
        self._task = asyncio.get_running_loop().create_task(self._run())

    def direct(self, direction: Direction, acked: Acknowledged) -> None:
        """Take a direction and what the store has."""
        if direction != self._direction or acked.checkpoints != self._acked.checkpoints:
            self.fleet.news.set()
        self._direction, self._acked = direction, acked
        self._telemetry.acknowledge(acked)

    async def told(self, wait_s: float) -> JobSnapshot:
        """Everything folded into an answer, which waits at most so long for something new."""
        until_s = time.monotonic() + wait_s
        while not self._has_news() and (rest_s := until_s - time.monotonic()) > 0:
            self._turned.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self._turned.wait()
        snapshot = replace(self._fold(), number=self._telemetry.number)
        self._answers.told(snapshot, self._telemetry.num_news)
        return snapshot

    def _has_news(self) -> bool:
        return self._answers.is_news(self._fold(), self._telemetry.num_news, has_all=self._has_all)

    @property
    def _is_over(self) -> bool:
        return self._state.outcome is not None or self._crash is not None

    @property
    def _has_all(self) -> bool:
        """Whether nothing will come any more that is to be told."""
        return self._is_over and self._has_left and not self._tails

    def _fold(self) -> JobSnapshot:
        pending = self._telemetry.pending()
        is_told = self._has_all and pending.is_all
        snapshot = fold(self._state, self._direction, pending, self._progress, self._crash)
        if waits := self._lookout.told(time.monotonic()):
            snapshot = replace(snapshot, detail=snapshot.detail or waits)
        return snapshot if is_told or not self._is_over else replace(snapshot, phase=RunPhase.STOPPING, outcome=None)

    async def cancel(self) -> None:
        """Stop turning."""
        self._task.cancel()
        self._lookout.forget()
        await asyncio.wait([self._task], timeout=END_S)

    async def finish(self) -> None:
        """Stop turning for good: workers that are left save and end."""
        await self.cancel()
        await retreat(self.fleet, self._listen, END_S)

    async def _run(self) -> None:
        try:
            listed: tuple[str, ...] | None = await self.fleet.adopt()
            while self._state.outcome is None:
                await self._turn(listed)
                self._turned.set()
                if listed is None and self._state.outcome is None:
                    await self._rest()
                listed = None
        except StaleTermError as error:
            print(error.message, flush=True)
            self.fleet.leave()
        except Exception as error:  # the one place of this process: the service learns of it by the snapshot
            traceback.print_exc()
            self._crash = replace(failure_of(error), reason=Reason.CONTROLLER_ERROR)
            await retreat(self.fleet, self._listen, RETREAT_S)
        finally:
            self._has_left = True
            self._turned.set()

    def _listen(self) -> None:
        """Take the last that the workers have to tell, and ask for more."""
        self._heard()
        for worker_id in self.fleet.worker_ids:
            if self.fleet.can_poll(worker_id):
                facts = self._state.workers.get(worker_id)
                acked = self._telemetry.acked_for(worker_id, facts.status if facts else None)
                self.fleet.poll(worker_id, None, acked, wants_records=True)

    def _heard(self) -> Heard:
        heard = self.fleet.heard()
        self._rested = (self._rested | heard.rested) & frozenset(self.fleet.worker_ids)
        for status in heard.statuses.values():
            self._telemetry.take(status)
        for worker_id in heard.lost:
            self._fetch_tail(worker_id)
        return heard

    async def _turn(self, listed: tuple[str, ...] | None) -> None:
        heard = self._heard()
        if heard.is_superseded:
            raise StaleTermError(self._state.term, self._state.term + 1)
        # Before the direction is read: a search that a new one cut short must not be taken for an empty storage.
        latest = await self._newest(heard, listed)
        inputs = Inputs(
            unix_s=time.time(),
            direction=self._direction,
            acked=self._acked,
            listed=listed,
            statuses=heard.statuses,
            lost=heard.lost,
            refusing=heard.refusing,
            nodes=heard.nodes,
            head_seen_s=heard.head_seen_s,
            was_cut_off=heard.was_cut_off,
            nodes_seen_s=heard.nodes_seen_s,
            latest=latest,
            has_looked=self._lookout.has_looked,
        )
        before = self._state
        self._state, actions = turn(before, inputs, time.monotonic())
        self._progress = self._progress.after(self._state, inputs.latest)
        self._note_plan(before, inputs.unix_s)
        for action in actions:
            self._carry_out(action)
        self._poll()

    def _note_plan(self, before: ControllerState, unix_s: float) -> None:
        old, plan = before.plan, self._state.plan
        if plan is None or plan is old:
            return
        if old is None or plan.generation != old.generation:
            self._telemetry.formed(plan)
        if before.is_adopting:
            # Its row may have died with the controller that issued it; what is stored already stays.
            self._telemetry.note_unstored(row_of(plan, unix_s))

    def _carry_out(self, action: Action) -> None:
        match action:
            case StartWorker(worker_id=i, avoids=avoids, must_fit=must_fit):
                self.fleet.start(i, avoids, must_fit=must_fit)
            case HaltWorker(worker_id=i, plan_id=plan_id):
                self.fleet.halt(i, plan_id)
            case SupersedeGroup(generation=generation):
                self._rendezvous.supersede(generation)
            case StopWorker(worker_id=i, save=save):
                self.fleet.stop(i, save)
            case KillWorker(worker_id=i):
                self.fleet.kill(i)
            case AskHead():
                self.fleet.ask_head()
            case AskNode(node_id=node_id):
                self.fleet.ask_node(node_id)
            case Note(row=row):
                # By the end nobody is left whom the turn could ask for the step.
                step = self._progress.step(self._launch.spec.batch.global_size)
                self._telemetry.note(replace(row, step=max(row.step, step)))

    def _poll(self) -> None:
        now_s = time.monotonic()
        is_awaited = bool(self._rested)
        teller = self._pace.teller(self._state, now_s, is_awaited=is_awaited) if self._telemetry.has_room else None
        for worker_id, facts in self._state.workers.items():
            offer = self._state.offers.get(worker_id)
            wants_records = worker_id == teller
            is_due = worker_id in self._rested or self._pace.is_due(self._state, facts, wants_records, now_s)
            if is_due and self.fleet.can_poll(worker_id):
                self._rested -= {worker_id}
                self._pace.polled(worker_id, offer, wants_records, now_s)
                acked = self._telemetry.acked_for(worker_id, facts.status)
                self.fleet.poll(worker_id, offer, acked, wants_records)

    async def _rest(self) -> None:
        """Until something happened, or the next poll is due."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pace.rest_s(self._state, self.fleet.can_poll, time.monotonic())):
                await self.fleet.news.wait()
        self.fleet.news.clear()

    async def _newest(self, heard: Heard, listed: tuple[str, ...] | None) -> CheckpointInfo | None:
        """The newest checkpoint to go on from; looked for where nobody is left who holds state in memory."""
        lost, end, is_adopting = heard.lost, self._state.ending, self._state.is_adopting
        is_doubted = self._lookout.doubt(s.stop for s in heard.statuses.values() if s.stop is not None)
        # Of those who are adopted it is not known yet what they hold.
        if (is_adopting and (listed or self._state.workers)) or membership.is_held(self._state, heard.statuses, lost):
            self._lookout.forget()
        elif (end is None or end.must_save) and (self._may_look() or lost or is_doubted):
            try:
                rows = await self._lookout.look(lambda: end is None and self._direction.goal is RunGoal.RUN)
            except OSError as error:
                # The attempt ends, and the job waits for its storage in the queue.
                self._state = ending.without_storage(self._state, error)
                rows = ()
            for row in rows:
                self._telemetry.note_unstored(row)
        return self._lookout.latest

    def _may_look(self) -> bool:
        return self._pace.may_look(time.monotonic()) or not self._lookout.has_looked

    def _fetch_tail(self, worker_id: str) -> None:
        facts = self._state.workers.get(worker_id)
        status = facts.status if facts else None
        member = status.plan.member(worker_id) if status and status.plan else None
        task = asyncio.get_running_loop().create_task(self._take_tail(worker_id, member.rank if member else None))
        self._tails.add(task)
        task.add_done_callback(self._has_taken_tail)

    def _has_taken_tail(self, task: asyncio.Task[None]) -> None:
        self._tails.discard(task)
        self._turned.set()

    async def _take_tail(self, worker_id: str, rank: int | None) -> None:
        """What a worker that is gone wrote last, or in its place that it cannot be had."""
        known = self._telemetry.log_end(worker_id)
        found = await self.fleet.tail(worker_id, known)
        if found is None:
            begin_at, data = known, f"[the end of the log of worker {worker_id} cannot be reached]\n".encode()
        else:
            begin_at, data = found
        if data:
            chunk = LogChunk(worker_id=worker_id, offset=begin_at, rank=rank, time=time.time(), data=data)
            self._telemetry.take_log(chunk, is_last=True)


@functools.cache
def job_controller_actor() -> Any:
    """The actor class, one for the process as Ray forgets none; name, namespace and lifetime are the caller's."""
    options: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "num_cpus": 0}
    decorate: Any = ray.remote(**options)
    return decorate(JobController)
