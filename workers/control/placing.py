"""Where a worker's process comes from: a spare that is ready on a node with room, else a new process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import RayError

from workers.control.actor import train_worker_actor
from workers.control.launch import Launch
from workers.control.names import NODE_ID_LABEL, SpareName
from workers.control.roster import Roster

READY_S = 10.0
"""How long a spare may need to become ready and to reserve its room; a new process would need as long."""

MAX_TRIES = 2

_free_by_node: Callable[[], dict[str, dict[str, float]]] = available_resources_per_node


async def place(roster: Roster, launch: Launch, name: str, avoids: frozenset[str]) -> Any:
    """The actor of a worker, by that ``name`` from now on, on none of the nodes ``avoids``.

    A new one may still wait for its place. Raises RayError, ValueError.
    """
    if launch.fits_spare:
        for spare in await asyncio.to_thread(_nearest, roster, _resources(launch), avoids):
            if (actor := await _taken(roster, launch, spare, name)) is not None:
                return actor
    return await asyncio.to_thread(_create, roster.namespace, launch, name, avoids)


def _nearest(roster: Roster, wanted: Mapping[str, float], avoids: frozenset[str]) -> list[SpareName]:
    """Those to try, on nodes with room as far as is known; Ray too would look here first."""
    spares = [spare for spare in roster.spares() if spare.node_id not in avoids]
    if not spares:
        return []
    here, free = ray.get_runtime_context().get_node_id(), _free_by_node()
    roomy = [s for s in spares if all(free.get(s.node_id, {}).get(kind, 0.0) >= n for kind, n in wanted.items())]
    return sorted(roomy, key=lambda spare: spare.node_id != here)[:MAX_TRIES]


async def _taken(roster: Roster, launch: Launch, spare: SpareName, name: str) -> Any:
    """The spare, with its room reserved; None where another was faster, its node has no room, or it fails."""
    if not await asyncio.to_thread(roster.take, spare, name):
        return None
    actor = None
    try:
        actor = await asyncio.to_thread(roster.spare, spare)
        async with asyncio.timeout(READY_S):
            if await actor.take_seat.remote(_resources(launch)):
                return actor
    except (RayError, TimeoutError, ValueError) as error:
        print(f"spare {spare.tag} on node {spare.node_id} cannot be used: {type(error).__name__}", flush=True)
        if actor is not None:
            await asyncio.to_thread(ray.kill, actor)
    await asyncio.to_thread(roster.give_back, spare)
    return None


def _resources(launch: Launch) -> dict[str, float]:
    wanted = launch.spec.resources
    room = {"CPU": wanted.cpus}
    if wanted.memory_bytes is not None:
        room["memory"] = float(wanted.memory_bytes)
    return room


def _create(namespace: str, launch: Launch, name: str, avoids: frozenset[str]) -> Any:
    resources = launch.spec.resources
    options: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "lifetime": "detached",
        "num_cpus": resources.cpus,
        "num_gpus": resources.gpus,
    }
    if resources.memory_bytes is not None:
        options["memory"] = resources.memory_bytes
    if avoids:
        options["label_selector"] = {NODE_ID_LABEL: f"!in({','.join(sorted(avoids))})"}
    return train_worker_actor().options(**options).remote(namespace)
