"""Processes of a stage, and the hands by which the real fleet of a controller starts, calls and ends them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ray.exceptions import RayActorError, RayTaskError

from tests.faults.crash_points import Trigger, When
from tests.faults.stage import Player, Stage
from workers.assignment import Assignment
from workers.control.actor import Tail
from workers.control.hands import To
from workers.control.launch import Launch
from workers.control.names import SpareName, pool_name, spare_name
from workers.control.rendezvous import RendezvousError
from workers.errors import JobError, ReturnedError, StaleTermError
from workers.plan import Plan, PlanId
from workers.status import Acknowledged, WorkerStatus

WATCH_S = 0.01
EXITED, KILLED = "INTENDED_USER_EXIT", "ray.kill"
"""Parts of Ray's words for an actor that ended by itself, and for one that was ended."""


@dataclass(eq=False)
class StageActor:
    """A worker's process: of a spare it has the name ``spare`` for good. ``player`` is what it was told to be."""

    listed: str
    node_id: str
    spare: SpareName | None = None
    stage: Stage | None = None
    player: Player | None = None
    name: str = ""
    pool: str = ""
    term: int = 0
    has_seat: bool = False
    is_waiting: bool = False
    is_alive: bool = True
    why: str = ""

    def hear(self, to: To) -> None:
        """Raises what Ray would of a process that is gone or serves another, or of a call of an earlier term."""
        self.check()
        self.check_name(to)
        if to.term < self.term:
            raise _told("hear", StaleTermError(to.term, self.term))
        self.term = to.term

    def check_name(self, to: To) -> None:
        """Raises what a process does that is another worker by now, or waits to become one."""
        if self.is_waiting or self.name not in ("", to.name):
            raise _told("hear", ReturnedError(f"{to.name} has ended"))

    def check(self) -> None:
        """Raises RayActorError, in Ray's own words, where the process has ended."""
        if not self.is_alive:
            raise RayActorError(error_msg=self.why)

    def trained(self) -> Player:
        """Raises what a worker does that nobody ever told what to train."""
        if self.player is None:
            raise _told("poll", RendezvousError("this worker was never told what to train"))
        return self.player

    def end(self, why: str, *, should_save: bool = False) -> None:
        """The process ends, and frees its room."""
        self._go(should_save)
        self.is_alive, self.is_waiting, self.why = False, False, why

    def rest(self, *, should_save: bool) -> None:
        """The worker ends, and its process waits in its pool."""
        self._go(should_save)
        self.name, self.term, self.player, self.is_waiting = "", 0, None, True

    def _go(self, should_save: bool) -> None:
        if self.is_alive and self.stage is not None and self.player is not None:
            self.stage.go(self.player.id, should_save=should_save)
        self.has_seat = False


class Ground(Protocol):
    """What the hands of all controllers share."""

    machines: tuple[str, ...]
    actors: dict[str, StageActor]
    notes: dict[SpareName, str]
    has_room: bool

    def name_of(self, actor: StageActor) -> str: ...

    def begin_spare(self, node_id: str) -> SpareName: ...

    async def names(self) -> list[str]: ...


class StageHands:
    """What the hands of one controller do to the processes of a stage."""

    def __init__(self, ground: Ground, stage: Stage) -> None:
        self._ground, self._stage = ground, stage

    async def names(self) -> list[str]:
        return await self._ground.names()

    async def find(self, name: str) -> StageActor:
        for actor in self._ground.actors.values():
            if actor.is_alive and self._ground.name_of(actor) == name:
                return actor
        raise ValueError(f"there is no actor {name}")

    async def node_of(self, actor: StageActor) -> str | None:
        return actor.node_id if actor.is_alive else None

    async def nearest(self, room: Mapping[str, float], avoids: frozenset[str]) -> list[SpareName]:
        spares = [actor.spare for actor in self._ground.actors.values() if actor.is_alive and actor.spare is not None]
        return [spare for spare in spares if spare not in self._ground.notes and spare.node_id not in avoids][:2]

    async def another(self, room: Mapping[str, float], avoids: frozenset[str]) -> SpareName | None:
        node_id = next((machine for machine in self._ground.machines if machine not in avoids), None)
        if node_id is None or not self._ground.has_room:
            return None
        return self._ground.begin_spare(node_id)

    async def take(self, spare: SpareName, name: str) -> bool:
        return self._ground.notes.setdefault(spare, name) == name

    async def spare(self, spare: SpareName) -> StageActor:
        return self._ground.actors[spare_name(spare.node_id, spare.tag)]

    async def seat(self, actor: StageActor, room: Mapping[str, float]) -> bool:
        actor.check()
        actor.has_seat = self._ground.has_room
        return actor.has_seat

    async def waiting(self, pool: str, room: Mapping[str, float], avoids: frozenset[str]) -> list[SpareName]:
        waiting = [actor.spare for actor in self._ground.actors.values() if actor.is_waiting and actor.spare]
        return [
            spare for spare in waiting if self._ground.notes[spare] == pool_name(pool) and spare.node_id not in avoids
        ]

    async def call_up(self, actor: StageActor, room: Mapping[str, float], name: str) -> bool:
        actor.check()
        if not actor.is_waiting or not self._ground.has_room:
            return False
        assert actor.spare is not None
        actor.name, actor.is_waiting, actor.has_seat = name, False, True
        self._ground.notes[actor.spare] = name
        return True

    async def give_back(self, spare: SpareName) -> None:
        self._ground.notes.pop(spare, None)

    async def create(self, launch: Launch, name: str, avoids: frozenset[str], *, must_fit: bool) -> StageActor:
        assert name not in self._ground.actors, "worker ids are never used twice"
        node_id = next((machine for machine in self._ground.machines if machine not in avoids), None)
        if node_id is None or (must_fit and not self._ground.has_room):
            raise ValueError("no node has room for it now")
        self._ground.actors[name] = StageActor(name, node_id)
        return self._ground.actors[name]

    async def start(self, actor: StageActor, assignment: Assignment, to: To, bundle: list[Any]) -> None:
        actor.hear(to)
        actor.name, actor.pool = to.name, assignment.pool
        actor.stage, actor.player = self._stage, self._stage.come(assignment.worker_id, actor.node_id)

    async def poll(
        self, actor: StageActor, to: To, plan: Plan | None, acked: Acknowledged, wants_records: bool
    ) -> WorkerStatus:
        actor.hear(to)
        if actor.trained().is_frozen:
            await asyncio.Event().wait()
        status = actor.trained().answer(to.term, plan, acked, wants_records)
        if status is None:
            raise _told("poll", StaleTermError(to.term, actor.trained().term))
        return status

    async def halt(self, actor: StageActor, to: To, plan_id: PlanId) -> None:
        actor.hear(to)
        actor.trained().halt(to.term, plan_id)

    async def stop(self, actor: StageActor, to: To, save: bool) -> None:
        actor.hear(to)
        if not actor.pool or not actor.has_seat or actor.spare is None:
            actor.end(EXITED, should_save=save)
            return
        actor.rest(should_save=save)
        self._ground.notes[actor.spare] = pool_name(actor.pool)

    async def watch(self, actor: StageActor, to: To, num_rests: int) -> int | None:
        actor.hear(to)
        while actor.term == to.term:
            player = actor.player
            if player is not None and not player.is_frozen and player.num_rests > num_rests:
                return player.num_rests
            await asyncio.sleep(WATCH_S)
            actor.check()
            actor.check_name(to)
        return None

    async def tail(self, actor: StageActor, to: To, path: str, offset: int) -> Tail | None:
        actor.hear(to)
        return None

    async def ask_node(self, node_id: str) -> None:
        return

    async def kill(self, actor: StageActor) -> None:
        actor.end(KILLED)

    async def put(self, url: str) -> str:
        return url


def _told(method: str, cause: JobError) -> RayTaskError:
    return RayTaskError(method, "", cause, proctitle="stage", pid=1, ip="127.0.0.1")


class MortalHands:
    """Hands of a controller that may die at a crash point, or be killed: no call of a dead one does anything, or ends.

    ``trigger`` gives the crash point in force, if there is one; ``leave`` ends the controller's process.
    """

    def __init__(self, hands: StageHands, trigger: Callable[[], Trigger | None], leave: Callable[[], None]) -> None:
        self._hands, self._trigger, self.leave = hands, trigger, leave
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._hands, name)

        @functools.wraps(method)
        async def call(*arguments: Any, **options: Any) -> Any:
            await self._pass(name, When.BEFORE)
            answer = await method(*arguments, **options)
            await self._pass(name, When.AFTER)
            return answer

        return call

    async def _pass(self, name: str, when: When) -> None:
        trigger = self._trigger()
        if not self.is_dead and trigger is not None and trigger.pull(name, when):
            self.leave()
        if self.is_dead:
            await asyncio.Event().wait()
