"""The sign of life that a program gives its supervisor: a byte a second, from its event loop, into a pipe.

A process that is stopped, or whose loop is stuck, gives none; one that waits for a lease, a database
or Ray does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

BEAT_S = 1.0

_pipe: int | None = None


def give_to(descriptor: int) -> None:
    """Signs of life of this process go to the writing end of a pipe; called once, before the program begins."""
    global _pipe
    # A supervisor that is stopped reads nothing, and must not hold this process up.
    os.set_blocking(descriptor, False)
    os.set_inheritable(descriptor, False)
    _pipe = descriptor


@contextlib.asynccontextmanager
async def beating() -> AsyncIterator[None]:
    """Give signs of life while the block lasts; nothing happens in a process that no supervisor started."""
    if _pipe is None:
        yield
        return
    beats = asyncio.create_task(_beat(_pipe))
    try:
        yield
    finally:
        beats.cancel()


async def _beat(descriptor: int) -> None:
    while True:
        # A full pipe says enough; a broken one is what the lifeline is for.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(descriptor, b".")
        await asyncio.sleep(BEAT_S)
