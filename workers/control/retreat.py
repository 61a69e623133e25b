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
    listens = True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(bound_s):
            while fleet.worker_ids:
                for worker_id in fleet.worker_ids:
                    fleet.stop(worker_id, save=True)
                for _ in range(round(REPEAT_S / LISTEN_S)):
                    listens = listens and _has_listened(listen)
                    if not fleet.worker_ids:
                        break
                    await asyncio.sleep(LISTEN_S)
    if listens:
        _has_listened(listen)


def _has_listened(listen: Callable[[], None]) -> bool:
    try:
        listen()
    except Exception:  # whatever is wrong with it, the workers must not stay
        traceback.print_exc()
        return False
    return True
