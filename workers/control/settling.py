"""Placing a worker that may have a GPU or CPUs instead: none is made before there is room, and each until it sits.

Others take room at the same time, of which nobody here knows: whoever was too late is made anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from workers.control.hands import Hands

ROOM_LOOK_S, SEAT_LOOK_S = 0.5, 0.1

NUM_LOOKS, LOST_LOOKS = 200, 20
"""A process for which there is room begins within seconds; every so many looks it is asked whether there still is any.

Both are doubled for each that did not begin: the machine may be slow.
"""

MOST_PATIENCE = 8
"""Up to so many times as many: while one waits for a GPU, CPUs that have come free are not tried, and the reverse."""


async def settle(hands: Hands, name: str, make: Callable[[], Awaitable[Any]], is_off: Callable[[], bool]) -> Any:
    """The actor of that name, once it sits on its node or is dead, or wherever it is when ``is_off``: nobody wants it.

    ``make`` makes it; None where there is no room. Raises as ``make``; ValueError where it is off before that. An actor
    that is not returned is killed. Where the job cannot train without it, ``place_s`` and ``hold_s`` of the controller
    bound all this; where it can, nobody does, as for any worker that waits for its place on Ray.
    """
    patience = 1
    while not is_off():
        actor = await make()
        if actor is None:
            await asyncio.sleep(ROOM_LOOK_S)
            continue
        try:
            # Of a dead one the first call tells why.
            if await _sits(hands, actor, is_off, patience) or not await _is_listed(hands, name, is_off):
                return actor
            await hands.give_up(actor)
            while not is_off() and await _is_listed(hands, name, is_off):
                await asyncio.sleep(SEAT_LOOK_S)
        except Exception:
            with contextlib.suppress(Exception):
                await hands.kill(actor)
            raise
        patience = min(2 * patience, MOST_PATIENCE)
    raise ValueError("there was no room for it yet")


async def _sits(hands: Hands, actor: Any, is_off: Callable[[], bool], patience: int) -> bool:
    for look in range(1, patience * NUM_LOOKS + 1):
        if is_off():
            return True
        # Where Ray fails to tell, in whichever way, it is asked again: the actor must not be left without its worker.
        with contextlib.suppress(Exception):
            if await hands.node_of(actor) is not None:
                return True
            if look % (patience * LOST_LOOKS) == 0 and await hands.has_lost(actor):
                return False
        await asyncio.sleep(SEAT_LOOK_S)
    return False


async def _is_listed(hands: Hands, name: str, is_off: Callable[[], bool]) -> bool:
    """Whether an actor has that name; also where Ray did not tell before it ``is_off``."""
    while not is_off():
        with contextlib.suppress(Exception):
            return name in await hands.names()
        await asyncio.sleep(SEAT_LOOK_S)
    return True
