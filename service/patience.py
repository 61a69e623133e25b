"""Asking storage, which may hang where it should fail: whoever waits for it goes on after a while as if it had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

BOUND_S = 30.0

# Threads of their own: those of the loop have other work, too, and a call that hangs keeps its thread.
_threads = ThreadPoolExecutor(16, "storage")


async def answered(call: Callable[[], T], bound_s: float | None = None) -> T:
    """The answer of a call that blocks; raises what it does, and as ``awaited``."""
    return await awaited(begun(call), bound_s)


def begun(call: Callable[[], T]) -> asyncio.Future[T]:
    """The answer to come of a call that blocks, in a thread for storage."""
    return asyncio.get_running_loop().run_in_executor(_threads, call)


async def awaited(answer: asyncio.Future[T], bound_s: float | None = None) -> T:
    """An answer of storage. Raises OSError where it takes longer than ``bound_s``, or ``BOUND_S`` where none is given.

    The call itself goes on.
    """
    limit_s = BOUND_S if bound_s is None else bound_s
    try:
        async with asyncio.timeout(limit_s) as bound:
            return await answer
    except TimeoutError:
        if not bound.expired():
            raise
        raise OSError(f"no answer within {limit_s:g} s") from None
