"""Where a worker's process comes from: its sweep's pool, a spare that is ready on a node with room, else a new one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from ray.exceptions import RayError

from workers.control.hands import Hands
from workers.control.launch import Launch
from workers.control.names import SpareName

ROOM_S, ROOM_LOOK_S = 0.25, 0.02
"""Nodes tell Ray's head of their room every tenth of a second at the latest; a new process takes seconds."""

READY_S = 10.0
"""How long a spare may need to become ready and to reserve its room; a new process would need as long."""


async def place(hands: Hands, launch: Launch, name: str, avoids: frozenset[str], *, must_fit: bool = False) -> Any:
    """The actor of a worker, by that ``name`` from now on, on none of the nodes ``avoids``.

    A new one may still wait for its place, if it need not fit right now; None as of ``Hands.create``. Raises RayError,
    ValueError.
    """
    room = _room(launch)
    if launch.pool and (actor := await _from_pool(hands, launch.pool, name, room, avoids)) is not None:
        return actor
    if launch.fits_spare:
        for spare in await hands.nearest(room, avoids):
            if (actor := await _taken(hands, spare, name, room)) is not None:
                return actor
    if launch.pool and (actor := await _awaited(hands, launch.pool, name, room, avoids)) is not None:
        return actor
    # Only what began as a spare can go into a pool.
    begun = await hands.another(room, avoids) if launch.pool else None
    if begun is not None and (actor := await _taken(hands, begun, name, room)) is not None:
        return actor
    return await hands.create(launch, name, avoids, must_fit=must_fit)


async def _from_pool(hands: Hands, pool: str, name: str, room: Mapping[str, float], avoids: frozenset[str]) -> Any:
    for spare in await hands.waiting(pool, room, avoids):
        if (actor := await _called_up(hands, spare, name, room)) is not None:
            return actor
    return None


async def _awaited(hands: Hands, pool: str, name: str, room: Mapping[str, float], avoids: frozenset[str]) -> Any:
    """One that waits where Ray may yet have to learn of the room; None after a moment, or where none waits."""
    until_s = time.monotonic() + ROOM_S
    while time.monotonic() < until_s and await hands.waiting(pool, {}, avoids):
        await asyncio.sleep(ROOM_LOOK_S)
        if (actor := await _from_pool(hands, pool, name, room, avoids)) is not None:
            return actor
    return None


async def _called_up(hands: Hands, spare: SpareName, name: str, room: Mapping[str, float]) -> Any:
    """A process from the pool, which decides itself who was first; None where that is another, or it has no room."""
    actor = None
    try:
        actor = await hands.spare(spare)
        async with asyncio.timeout(READY_S):
            return actor if await hands.call_up(actor, room, name) else None
    except (RayError, TimeoutError, ValueError) as error:
        print(f"process {spare.tag} on node {spare.node_id} cannot be used: {type(error).__name__}", flush=True)
        if actor is not None:  # it may heed the call yet, when another has that name
            await hands.kill(actor)
        return None


async def _taken(hands: Hands, spare: SpareName, name: str, room: Mapping[str, float]) -> Any:
    """The spare, with its room reserved; None where another was faster, its node has no room, or it fails."""
    if not await hands.take(spare, name):
        return None
    actor = None
    try:
        actor = await hands.spare(spare)
        async with asyncio.timeout(READY_S):
            if await hands.seat(actor, room):
                return actor
    except (RayError, TimeoutError, ValueError) as error:
        print(f"spare {spare.tag} on node {spare.node_id} cannot be used: {type(error).__name__}", flush=True)
        if actor is not None:
            await hands.kill(actor)
    await hands.give_back(spare)
    return None


def _room(launch: Launch) -> dict[str, float]:
    wanted = launch.spec.resources
    room = {"CPU": wanted.cpus}
    if wanted.memory_bytes is not None:
        room["memory"] = float(wanted.memory_bytes)
    return room
