"""The hands of a fleet, by Ray."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.state import actors, available_resources_per_node
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply  # type: ignore[attr-defined]  # made by protoc
from ray.experimental.internal_kv import internal_kv_get_gcs_client
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from workers.assignment import Assignment
from workers.control.actor import Tail, train_worker_actor
from workers.control.hands import To
from workers.control.launch import Launch
from workers.control.names import SpareName
from workers.control.roster import Roster
from workers.control.shapes import Shape, choose, either
from workers.control.spares import begin_spare
from workers.plan import Plan, PlanId
from workers.spec_parts import Resources
from workers.status import Acknowledged, WorkerStatus
from workers.storage import read
from workers.storage_urls import open_storage

MAX_SPARES = 2
STATUS_S = 5.0
NO_ROOM = "no node has room for it now"

_free_by_node: Callable[[], dict[str, dict[str, float]]] = available_resources_per_node
_nodes: Callable[[], list[dict[str, Any]]] = ray.nodes
_at_head: Callable[[str], dict[str, Any]] = actors
_client: Callable[[], Any] = internal_kv_get_gcs_client


@dataclass(frozen=True, slots=True)
class Coming:
    """A new worker that has chosen a GPU or CPUs instead of it, and may have no place yet."""

    name: str
    shape: Shape


class RayHands:
    """``Hands`` in one namespace. Needs this process to be an actor of that Ray.

    ``leave`` is what it does in place of ending the process. What was tried ``in_vain`` is by the worker's name, until
    it tries anew.
    """

    def __init__(self, namespace: str, leave: Callable[[], None] | None = None) -> None:
        self._roster = Roster(namespace)
        self._leave = leave or (lambda: os._exit(0))
        self._choosing = asyncio.Lock()
        self._coming: dict[Any, Coming] = {}
        self._in_vain: dict[str, Resources] = {}

    async def names(self) -> list[str]:
        return await asyncio.to_thread(self._roster.names)

    async def find(self, name: str) -> Any:
        return await asyncio.to_thread(self._roster.find, name)

    async def node_of(self, actor: Any) -> str | None:
        return await asyncio.to_thread(_node_of, actor)

    async def nearest(self, room: Mapping[str, float], avoids: frozenset[str]) -> list[SpareName]:
        return await asyncio.to_thread(_nearest, self._roster, room, avoids)

    async def another(self, room: Mapping[str, float], avoids: frozenset[str]) -> SpareName | None:
        return await asyncio.to_thread(_another, self._roster.namespace, room, avoids)

    async def take(self, spare: SpareName, name: str) -> bool:
        return await asyncio.to_thread(self._roster.take, spare, name)

    async def spare(self, spare: SpareName) -> Any:
        return await asyncio.to_thread(self._roster.spare, spare)

    async def seat(self, actor: Any, room: Mapping[str, float]) -> bool:
        return bool(await actor.take_seat.remote(dict(room)))

    async def waiting(self, pool: str, room: Mapping[str, float], avoids: frozenset[str]) -> list[SpareName]:
        return await asyncio.to_thread(_waiting, self._roster, pool, room, avoids)

    async def call_up(self, actor: Any, room: Mapping[str, float], name: str) -> bool:
        return bool(await actor.call_up.remote(dict(room), name))

    async def give_back(self, spare: SpareName) -> None:
        await asyncio.to_thread(self._roster.give_back, spare)

    async def create(self, launch: Launch, name: str, avoids: frozenset[str], *, must_fit: bool) -> Any:
        resources = launch.spec.resources
        if resources.cpus_instead is None:
            shape = Shape(resources, avoids)
            return await asyncio.to_thread(_create, self._roster.namespace, shape, name, must_fit)
        async with self._choosing:
            for actor_id in await asyncio.to_thread(_dead, [*self._coming]):
                self._coming.pop(actor_id, None)
            coming = [each.shape.resources for each in self._coming.values()]
            chosen = await asyncio.to_thread(_choose, resources, avoids, coming, self._in_vain.get(name))
            if chosen is None and must_fit:
                raise ValueError(NO_ROOM)
            if chosen is None:
                return None
            actor = await asyncio.to_thread(_create, self._roster.namespace, chosen, name, must_fit=False)
            self._coming[actor._actor_id] = Coming(name, chosen)
            self._in_vain.pop(name, None)
            return actor

    async def start(self, actor: Any, assignment: Assignment, to: To, bundle: list[Any]) -> None:
        try:
            await actor.start.remote(assignment, to.term, bundle)
        finally:
            self._coming.pop(actor._actor_id, None)

    async def poll(
        self, actor: Any, to: To, plan: Plan | None, acked: Acknowledged, wants_records: bool
    ) -> WorkerStatus:
        status = await actor.poll.remote(to.name, to.term, plan, acked, wants_records)
        assert isinstance(status, WorkerStatus)
        return status

    async def halt(self, actor: Any, to: To, plan_id: PlanId) -> None:
        await actor.halt.remote(to.name, to.term, plan_id)

    async def stop(self, actor: Any, to: To, save: bool) -> None:
        await actor.stop.remote(to.name, to.term, save)

    async def watch(self, actor: Any, to: To, num_rests: int) -> int | None:
        told: int | None = await actor.watch.remote(to.name, to.term, num_rests)
        return told

    async def tail(self, actor: Any, to: To, path: str, offset: int) -> Tail | None:
        found: Tail | None = await actor.tail.remote(to.name, to.term, path, offset)
        return found

    async def ask_node(self, node_id: str) -> None:
        if node_id == ray.get_runtime_context().get_node_id():
            return
        # In a thread: the first one tells Ray's head of the function, and blocks until that answers.
        asked = asyncio.ensure_future(asyncio.to_thread(_ask, node_id))
        try:
            await (await asyncio.shield(asked))
        finally:
            asked.add_done_callback(_take_back)

    async def has_lost(self, actor: Any) -> bool:
        if await asyncio.to_thread(_dead, [actor._actor_id]):
            return True
        own = self._coming.get(actor._actor_id)
        return own is not None and await asyncio.to_thread(_is_lacking, own.shape)

    async def give_up(self, actor: Any) -> None:
        if (own := self._coming.get(actor._actor_id)) is not None:
            self._in_vain[own.name] = own.shape.resources
        await self.kill(actor)

    async def kill(self, actor: Any) -> None:
        self._coming.pop(actor._actor_id, None)
        await asyncio.to_thread(ray.kill, actor)

    async def put(self, url: str) -> Any:
        return await asyncio.to_thread(_put, url)

    def leave(self) -> None:
        self._leave()


@functools.cache
def _answer_task() -> Any:
    """One for the process, as Ray forgets none."""
    decorate: Any = ray.remote(num_cpus=0, max_retries=0)
    return decorate(_answer)


def _ask(node_id: str) -> Any:
    place = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return _answer_task().options(scheduling_strategy=place).remote()


def _take_back(asked: asyncio.Future[Any]) -> None:
    if not asked.cancelled() and asked.exception() is None:
        ray.cancel(asked.result(), force=True)  # nothing happens where it has ended


def _answer() -> None:
    """All that is to be known is that it was run."""


def _node_of(actor: Any) -> str | None:
    found = _at_head(actor._actor_id.hex())
    return str(found["Address"]["NodeID"]) if found.get("State") == "ALIVE" else None


def _nearest(roster: Roster, room: Mapping[str, float], avoids: frozenset[str]) -> list[SpareName]:
    return _roomy([spare for spare in roster.spares() if spare.node_id not in avoids], room)[:MAX_SPARES]


def _waiting(roster: Roster, pool: str, room: Mapping[str, float], avoids: frozenset[str]) -> list[SpareName]:
    return _roomy([spare for spare in roster.pooled(pool) if spare.node_id not in avoids], room)


def _another(namespace: str, room: Mapping[str, float], avoids: frozenset[str]) -> SpareName | None:
    here = ray.get_runtime_context().get_node_id()
    roomy = _nodes_with(room, avoids)
    return begin_spare(namespace, min(roomy, key=lambda node_id: node_id != here), is_ready=False) if roomy else None


def _nodes_with(room: Mapping[str, float], avoids: frozenset[str]) -> list[str]:
    return [node_id for node_id, free in _free_by_node().items() if node_id not in avoids and _fits(room, free)]


def _roomy(spares: list[SpareName], room: Mapping[str, float]) -> list[SpareName]:
    """Those with room; Ray too would look on this node first."""
    if not spares:
        return []
    here, free = ray.get_runtime_context().get_node_id(), _free_by_node()
    roomy = [spare for spare in spares if _fits(room, free.get(spare.node_id, {}))]
    return sorted(roomy, key=lambda spare: spare.node_id != here)


def _fits(room: Mapping[str, float], free: Mapping[str, float]) -> bool:
    return all(free.get(kind, 0.0) >= amount for kind, amount in room.items())


def _create(namespace: str, shape: Shape, name: str, must_fit: bool) -> Any:
    if must_fit and not shape.num_fitting(_free_by_node()):
        raise ValueError(NO_ROOM)
    place: dict[str, Any] = {"name": name, "namespace": namespace, "lifetime": "detached"}
    return train_worker_actor().options(**place, **shape.options).remote(namespace)


def _choose(
    resources: Resources, avoids: frozenset[str], coming: Sequence[Resources], in_vain: Resources | None
) -> Shape | None:
    with_gpus = (node["NodeID"] for node in _nodes() if node["Alive"] and node["Resources"].get("GPU", 0) > 0)
    return choose(either(resources, avoids, frozenset(with_gpus)), _free_by_node(), coming, in_vain)


def _dead(actor_ids: Collection[Any]) -> list[Any]:
    return [actor_id for actor_id in actor_ids if _at_head(actor_id.hex()).get("State") == "DEAD"]


def _is_lacking(shape: Shape) -> bool:
    """Whether no node has room for such a one, and some wait for it."""
    if shape.num_fitting(_free_by_node()):
        return False
    # Whoever begins holds its room before it has a node, so that none may be left: Ray tells of those who wait alone.
    reply = GetClusterStatusReply()
    reply.ParseFromString(_client().get_cluster_status(timeout_s=STATUS_S))
    asked = reply.cluster_resource_state.pending_resource_requests
    return any(shape.is_like(each.request.resources_bundle) for each in asked)


def _put(url: str) -> Any:
    place, _, key = url.rpartition("/")
    return ray.put(read(open_storage(place), key))
