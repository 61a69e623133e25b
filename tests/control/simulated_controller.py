"""A controller of the simulation: the real ``turn`` and its calls to workers by mail, for as long as it acts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tests.control.simulated_worker import SimWorker
from workers.control.decisions import (
    Action,
    AskHead,
    AskNode,
    ControllerState,
    HaltWorker,
    Inputs,
    KillWorker,
    StartWorker,
    StopWorker,
    SupersedeGroup,
)
from workers.control.turn import turn
from workers.plan import Plan, PlanId
from workers.status import Acknowledged, CheckpointInfo, Direction, StopCause, WorkerStatus

if TYPE_CHECKING:
    from tests.control.simulation import World

POLL_S = 0.5
"""A poll that was not answered by then is given up; the fleet's has a like part of the patience with a worker."""


@dataclass
class SimController:
    """``superseded`` is the last generation that its store of rendezvous gave up. It acts from ``resumes_s`` on.

    ``inherited`` is the highest plan of earlier terms that its workers held once all of them had heard its term.
    One that was replaced acts until ``ends_s``, and hears of no refusal: the answers are lost on their way.
    """

    world: World
    state: ControllerState
    direction: Direction
    acked: Acknowledged
    listed: tuple[str, ...] | None
    superseded: int = 0
    inherited: PlanId = PlanId(0, 0)
    resumes_s: float = 0.0
    ends_s: float = math.inf
    heard: dict[str, WorkerStatus] = field(default_factory=dict)
    asked: dict[str, float] = field(default_factory=dict)
    head_seen_s: float | None = None
    was_cut_off: bool = False
    is_asking_head: bool = False
    nodes_seen_s: dict[str, float] = field(default_factory=dict)
    asked_nodes: set[str] = field(default_factory=set)

    @property
    def term(self) -> int:
        return self.state.term

    def knows(self, plan: Plan) -> bool:
        """Whether its workers may train under this plan; while it adopts them, under any."""
        return self.state.is_adopting or plan.id.term == self.term or plan.id <= self.inherited

    def act(self) -> None:
        """One turn, and what it asks for."""
        world = self.world
        if world.now < self.resumes_s:
            return
        self._poll_all()
        inputs = Inputs(
            unix_s=world.now,
            direction=self.direction,
            acked=self.acked,
            listed=self.listed,
            statuses=dict(self.heard),
            lost={i: why for i, why in world.lost.items() if i in self.state.workers},
            head_seen_s=self.head_seen_s,
            was_cut_off=self.was_cut_off,
            nodes_seen_s=dict(self.nodes_seen_s),
            latest=self._latest(),
            has_looked=True,
        )
        self.listed, self.was_cut_off = None, False
        was_adopting = self.state.is_adopting
        self.state, actions = turn(self.state, inputs, world.now)
        if was_adopting and not self.state.is_adopting and self.state.plan is not None:
            self.inherited = self.state.plan.id
        for action in actions:
            self._carry_out(action)

    def _latest(self) -> CheckpointInfo | None:
        """The newest checkpoint; that one is damaged shows when a worker could not read it."""
        world = self.world
        stops = [status.stop for status in self.heard.values() if status.stop is not None]
        if any(stop.cause is StopCause.CHECKPOINT for stop in stops):
            world.passed_over |= world.damaged
        found = [c for c, _ in world.storage if c.path not in world.passed_over]
        return max(found, key=lambda c: c.order, default=None)

    def _poll_all(self) -> None:
        world = self.world
        for worker_id in self.state.workers:
            worker = world.workers.get(worker_id)
            if worker is None or world.now - self.asked.get(worker_id, -POLL_S) < POLL_S:
                continue
            self.asked[worker_id] = world.now
            plan = self.state.offers.get(worker_id)

            def ask(worker: SimWorker = worker, plan: Plan | None = plan) -> None:
                is_mute = worker.is_frozen or worker.id not in world.workers or world.is_cut_off(worker.id)
                status = None if is_mute else worker.poll(self.term, plan)

                def answer(status: WorkerStatus | None = status, worker: SimWorker = worker) -> None:
                    self.asked.pop(worker.id, None)
                    if status is not None:
                        self.heard[worker.id] = status

                world.send(answer, 0.1)

            world.send(ask, 0.1)

    def _carry_out(self, action: Action) -> None:
        world, term = self.world, self.term
        match action:
            case StartWorker(worker_id=i):
                if self._finds_successor():
                    world.num_withheld += 1
                else:
                    world.start(i, term)
            case HaltWorker(worker_id=i, plan_id=p):
                if (target := self._target(i)) is not None:
                    world.send(partial(target.halt, term, p))
            case SupersedeGroup(generation=g):
                self.superseded = max(self.superseded, g)
            case StopWorker(worker_id=i):
                if (target := self._target(i)) is not None:
                    world.send(partial(target.end, term))
            case KillWorker(worker_id=i, why=why):
                self._kill(i, why)
            case AskHead():
                self._ask_head()
            case AskNode(node_id=node_id):
                self._ask_node(node_id)
            case _:
                pass

    def _target(self, worker_id: str) -> SimWorker | None:
        """Who hears a call that is made now; None where nobody does."""
        worker = self.world.workers.get(worker_id)
        is_mute = worker is None or worker.is_frozen or self.world.is_cut_off(worker_id)
        return None if is_mute else worker

    def _kill(self, worker_id: str, why: str) -> None:
        world = self.world
        if self._finds_successor():
            return
        worker = world.workers.get(worker_id)
        if worker is None:
            return
        is_out_of_reach = world.is_cut_off(worker_id) and not worker.is_frozen
        assert not (is_out_of_reach and "silent" in why), f"cut off itself, it left {worker_id} behind: {why}"
        world.kill(worker_id)

    def _finds_successor(self) -> bool:
        """Whether Ray's head knows one; this controller ends then."""
        if self.world.term > self.term:
            self.ends_s = self.world.now
        return self.world.term > self.term

    def _ask_head(self) -> None:
        if self.is_asking_head:
            return
        world = self.world
        self.is_asking_head = True
        asked_s, is_late = world.now, world.now < world.cut_until

        def answer() -> None:
            self.is_asking_head, self.was_cut_off = False, is_late
            self.head_seen_s = self.head_seen_s if is_late else asked_s
            self._finds_successor()

        world.mail.append((max(world.now, world.cut_until) + world.rng.uniform(0.0, 0.1), answer))

    def _ask_node(self, node_id: str) -> None:
        """Each worker has a node of its own, which is cut off with it, and answers while it is frozen."""
        if node_id in self.asked_nodes:
            return
        world = self.world
        self.asked_nodes.add(node_id)

        def answer() -> None:
            self.asked_nodes.discard(node_id)
            self.nodes_seen_s[node_id] = world.now

        since_s = world.cut_until if world.is_cut_off(node_id) else world.now
        world.mail.append((since_s + world.rng.uniform(0.0, 0.1), answer))
