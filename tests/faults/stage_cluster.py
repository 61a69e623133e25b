"""A cluster in memory whose workers note what they do, as a process of its own that outlives the service.

``serve_cluster`` is that process; ``RemoteCluster`` is the reconciler's port to it. Each call is one
connection to a UNIX socket: a pickled request, a pickled answer. A caller that is killed in mid-call
leaves its effect behind, as with Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from service.ports import ClusterError, ClusterLostError, ControllerFaultError, ControllerSilentError
from service.records import Autoscaling, ClusterView
from tests.fakes import FakeCluster
from tests.faults.crash_points import CrashPoint, Trigger
from tests.faults.remains import Remains
from tests.faults.stage import Stage, Stored, make_stage
from tests.faults.stage_hands import EXITED, KILLED, MortalHands, StageActor, StageHands
from tuning.orders import Answer, Question
from workers.assignment import JobKey
from workers.control.fleet import Fleet
from workers.control.hands import Hands
from workers.control.launch import Launch
from workers.control.names import SpareName, controller_name, parse_pool, spare_name
from workers.control.ray_fleet import RayFleet
from workers.status import Acknowledged, Direction, JobSnapshot

PLAY_S = 0.005
CALL_S = 10.0
CLUSTER_BYTES = 2**26


class StageCluster(FakeCluster):
    """All stages of one installation, and an autoscaler that has no nodes; ``play`` drives them until cancelled.

    Controllers reach the workers by the real fleet. ``has_room``: whether a spare gets the room that it asks for.
    The workers of an attempt stand still, and answer, once one of them has come to the round ``upto`` and, but for 0,
    one has saved: a round in which others come or go is not saved.
    """

    def __init__(self, num_cpus: float, diary: Path) -> None:
        super().__init__(num_cpus=num_cpus)
        self.autoscaling = Autoscaling()
        self.actors: dict[str, StageActor] = {}
        self.notes: dict[SpareName, str] = {}
        self.has_room = True
        self._diary = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._stages: dict[JobKey, Stage] = {}
        self._saved: dict[str, Stored] = {}
        self._hands: dict[str, MortalHands] = {}
        self._trigger: Trigger | None = None
        self._num_spares = 0

    async def play(self) -> None:
        while True:
            for stage in self._stages.values():
                is_there = stage.furthest >= self.upto
                if not is_there or (self.upto and not stage.saved):
                    stage.play()
            await asyncio.sleep(PLAY_S)

    async def arm(self, point: CrashPoint) -> None:
        """Let the controller that comes to this point die there."""
        self._trigger = Trigger(point)

    async def has_struck(self) -> bool:
        """Whether one came to the point."""
        return self._trigger is not None and self._trigger.has_struck

    async def have_autoscaler(self, has_one: bool) -> None:
        """Where there is one, an idle node has no spares."""
        self.autoscaling = Autoscaling() if has_one else None

    async def give_room(self, has_room: bool) -> None:
        """Whether spares get the room that they ask for, from now on."""
        self.has_room = has_room

    async def have_machines(self, *names: str) -> None:
        """Be on these from now on; who looks for a place tries them in this order."""
        self.machines = names

    async def freeze(self, name: str) -> None:
        """A worker stands still, as by SIGSTOP."""
        self._actor(name).trained().is_frozen = True

    async def add_stray(self, name: str) -> None:
        """An actor that nobody owns."""
        self.strays.add(name)

    async def remains(self) -> Remains:
        """For the oracle."""
        living = [actor for actor in self.actors.values() if actor.is_alive]
        return Remains(
            names=await self.names(),
            spares=[actor.listed for actor in living if self._waits(actor)],
            groups={actor.listed: self.name_of(actor) for actor in living if actor.has_seat},
        )

    async def names(self) -> list[str]:
        self._check()
        workers = [self.name_of(actor) for actor in self.actors.values() if actor.is_alive and not self._waits(actor)]
        return [*self.controllers, *workers, *self.strays, *self.searches]

    async def end_pools(self, sweep_id: str) -> None:
        await super().end_pools(sweep_id)
        for actor in self.actors.values():
            if actor.is_waiting and parse_pool(self.name_of(actor)) == sweep_id:
                actor.end(EXITED)

    async def kill(self, names: Sequence[str]) -> None:
        await super().kill(names)
        for name in names:
            for actor in [actor for actor in self.actors.values() if self.name_of(actor) == name]:
                actor.end(KILLED)

    async def keep_spares(self, wanted: Mapping[str, int]) -> None:
        await super().keep_spares(wanted)
        self.notes = {spare: name for spare, name in self.notes.items() if self._listed(spare).is_alive}
        there = Counter(actor.node_id for actor in self.actors.values() if actor.is_alive and self._waits(actor))
        for node_id, number in wanted.items():
            for _ in range(number - there[node_id]):
                self.begin_spare(node_id)

    def begin_spare(self, node_id: str) -> SpareName:
        self._num_spares += 1
        spare = SpareName(node_id=node_id, tag=str(self._num_spares))
        name = spare_name(spare.node_id, spare.tag)
        self.actors[name] = StageActor(name, node_id, spare)
        return spare

    async def lose_controller(self, name: str) -> None:
        if name in self._hands:
            self._hands[name].is_dead = True
        await super().lose_controller(name)

    def name_of(self, actor: StageActor) -> str:
        return actor.listed if actor.spare is None else self.notes.get(actor.spare, actor.listed)

    def _waits(self, actor: StageActor) -> bool:
        return actor.spare is not None and actor.spare not in self.notes

    def _listed(self, spare: SpareName) -> StageActor:
        return self.actors[spare_name(spare.node_id, spare.tag)]

    def _actor(self, name: str) -> StageActor:
        return next(actor for actor in self.actors.values() if actor.is_alive and self.name_of(actor) == name)

    def _fleet(self, key: JobKey, term: int, launch: Launch) -> Fleet:
        if key not in self._stages:
            saved = self._saved.setdefault(key.job_id, [])
            self._stages[key] = make_stage(key, launch, saved, self._diary, seed=len(self._stages))
            self.workers[key] = self._stages[key].workers  # type: ignore[assignment]  # named and counted alike
        stage, name = self._stages[key], controller_name(key, term)
        stage.term = max(stage.term, term)
        self._hands[name] = MortalHands(
            StageHands(self, stage), lambda: self._trigger, leave=lambda: self._drop_controller(name)
        )
        return RayFleet(key, term, cast(Hands, self._hands[name]), launch)

    def _drop_controller(self, name: str) -> None:
        """A controller's process ends, by its own doing."""
        self._hands[name].is_dead = True
        controller = self.controllers.pop(name, None)
        course = controller._course if controller else None
        if course is not None:
            course._task.cancel()


class RemoteCluster:
    """``ClusterPort`` on a socket; every call has a bound."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

    async def connect(self) -> None:
        await self._call("connect")

    async def close(self) -> None:
        return

    async def is_reachable(self) -> bool:
        with contextlib.suppress(ClusterError):
            return bool(await self._call("is_reachable"))
        return False

    def has_node(self) -> bool:
        return True

    async def names(self) -> list[str]:
        found: list[str] = await self._call("names")
        return found

    async def start_controller(self, key: JobKey, term: int, launch: Launch) -> None:
        await self._call("start_controller", key, term, launch)

    async def direct(
        self, key: JobKey, term: int, direction: Direction, acked: Acknowledged, bound_s: float, wait_s: float
    ) -> JobSnapshot | None:
        try:
            async with asyncio.timeout(bound_s):
                found: JobSnapshot | None = await self._call("direct", key, term, direction, acked, bound_s, wait_s)
                return found
        except TimeoutError:
            raise ControllerSilentError(f"{key} did not answer within {bound_s:g} s") from None

    async def end_controller(self, key: JobKey, term: int) -> None:
        await self._call("end_controller", key, term)

    async def ask_search(self, sweep_id: str, term: int, question: Question, bound_s: float) -> Answer | None:
        answer: Answer | None = await self._call("ask_search", sweep_id, term, question, bound_s)
        return answer

    async def end_search(self, sweep_id: str, term: int) -> bool:
        return bool(await self._call("end_search", sweep_id, term))

    async def end_pools(self, sweep_id: str) -> None:
        await self._call("end_pools", sweep_id)

    async def kill(self, names: Sequence[str]) -> None:
        await self._call("kill", list(names))

    async def add_stray(self, name: str) -> None:
        """See ``StageCluster``, as for all that only tests call."""
        await self._call("add_stray", name)

    async def arm(self, point: CrashPoint) -> None:
        await self._call("arm", point)

    async def has_struck(self) -> bool:
        return bool(await self._call("has_struck"))

    async def have_autoscaler(self, has_one: bool) -> None:
        await self._call("have_autoscaler", has_one)

    async def give_room(self, has_room: bool) -> None:
        await self._call("give_room", has_room)

    async def have_machines(self, *names: str) -> None:
        await self._call("have_machines", *names)

    async def freeze(self, name: str) -> None:
        await self._call("freeze", name)

    async def remains(self) -> Remains:
        """For the oracle."""
        found: Remains = await self._call("remains")
        return found

    async def who_sees(self, path: str, node_ids: Sequence[str]) -> frozenset[str]:
        found: frozenset[str] = await self._call("who_sees", path, list(node_ids))
        return found

    async def view(self) -> ClusterView:
        found: ClusterView = await self._call("view")
        return found

    async def demand(self, bundles: Sequence[Mapping[str, float]]) -> None:
        await self._call("demand", list(bundles))

    async def keep_spares(self, wanted: Mapping[str, int]) -> None:
        await self._call("keep_spares", dict(wanted))

    async def _call(self, method: str, *arguments: object) -> Any:
        try:
            async with asyncio.timeout(CALL_S):
                reader, writer = await asyncio.open_unix_connection(self._socket, limit=CLUSTER_BYTES)
                try:
                    writer.write(pickle.dumps((method, arguments)))
                    writer.write_eof()
                    answer = pickle.loads(await reader.read(-1))
                finally:
                    writer.close()
        except (OSError, EOFError, TimeoutError) as error:
            raise ClusterLostError(f"{method}: {type(error).__name__}: {error}") from error
        if isinstance(answer, ClusterError):
            raise answer
        return answer


async def serve_cluster(listener: socket.socket, num_cpus: float, diary: Path) -> None:
    """Answer calls on a UNIX socket that listens, until cancelled."""
    cluster = StageCluster(num_cpus, diary)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, arguments = pickle.loads(await reader.read(-1))
        try:
            result = await getattr(cluster, method)(*arguments)
        except ClusterError as error:
            result = error
        except Exception as error:  # as Ray hands over what an actor's method raised
            result = ControllerFaultError(f"{method} failed: {type(error).__name__}: {error}")
        with contextlib.suppress(OSError):
            writer.write(pickle.dumps(result))
            await writer.drain()
            writer.close()

    server = await asyncio.start_unix_server(answer, sock=listener, limit=CLUSTER_BYTES)
    async with server:
        await asyncio.gather(server.serve_forever(), cluster.play())
