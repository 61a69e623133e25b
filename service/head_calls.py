"""Calls to Ray's head that block: one thread, one call after another, a bound for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class HeadCalls:
    """A bound counts from when its call has its turn: over a slow link many calls take long, and each is answered."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ray")
        self._turn = asyncio.Lock()
        self._running = set[Future[Any]]()
        self._is_stuck = False

    @property
    def is_idle(self) -> bool:
        """Whether the thread is free."""
        return not self._running

    async def run(self, call: Callable[[], T], bound_s: float) -> T:
        """What ``call`` returns. Raises TimeoutError when it takes longer, and at once while an earlier one hangs."""
        async with self._turn:
            if self._is_stuck and not self.is_idle:
                raise TimeoutError
            running = self._thread.submit(call)
            self._running.add(running)
            running.add_done_callback(self._running.discard)
            try:
                async with asyncio.timeout(bound_s):
                    return await asyncio.wrap_future(running)
            except TimeoutError:
                self._is_stuck = not self.is_idle
                raise

    def close(self) -> None:
        """Let the thread end when its call does."""
        self._thread.shutdown(wait=False)
