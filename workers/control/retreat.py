"""When a controller fails itself: its workers end in order, without any of its decisions."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable

from workers.control.fleet import Fleet

REPEAT_S = 1.0
"""A stop that got lost is repeated; telling a worker twice changes nothing."""

LISTEN_S = 0.05


async def retreat(fleet: Fleet, listen: Callable[[], None], bound_s: float) -> None:
    """Make every worker save its last commit and leave; return when all are gone, or after ``bound_s``.

    Whoever was told ends by itself, also after the bound and without a controller. ``listen`` takes what
    the workers still tell; where it raises it is not called again, as it may be what failed.
    """
    listening = _Listening(listen)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(bound_s):
            while fleet.worker_ids:
                for worker_id in fleet.worker_ids:
                    fleet.stop(worker_id, save=True)
                await _listened(fleet, listening)
    listening.take()


async def _listened(fleet: Fleet, listening: _Listening) -> None:
    """Hear what the workers tell until all are gone, or the stops are to be repeated."""
    for _ in range(round(REPEAT_S / LISTEN_S)):
        listening.take()
        if not fleet.worker_ids:
            return
        await asyncio.sleep(LISTEN_S)


class _Listening:
    """Listens until that raises."""

    def __init__(self, listen: Callable[[], None]) -> None:
        self._listen: Callable[[], None] | None = listen

    def take(self) -> None:
        """What has come by now; nothing once listening has failed."""
        if self._listen is not None and not _has_listened(self._listen):
            self._listen = None


def _has_listened(listen: Callable[[], None]) -> bool:
    try:
        listen()
    except Exception:  # whatever is wrong with it, the workers must not stay
        traceback.print_exc()
        return False
    return True
