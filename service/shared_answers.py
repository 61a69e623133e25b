"""Answers that many readers want at the same moment: each is made once, and kept while it may be wanted again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedAnswers(Generic[T]):
    """Whoever asks while an answer is being made waits for it. What is kept has at most ``max_bytes`` in all."""

    def __init__(self, size_bytes: Callable[[T], int], max_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._max_bytes = max_bytes
        self._tasks: dict[Hashable, asyncio.Future[T]] = {}
        self.num_bytes = 0

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """The answer, from ``make`` where nobody has asked yet. Raises what ``make`` raises; that is not kept."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.ensure_future(make())
            task.add_done_callback(lambda done: self._settle(key, done))
        # Who gives up must not take the answer from the others.
        return await asyncio.shield(task)

    def clear(self) -> None:
        """Forget all; answers that are being made still reach those who wait for them."""
        self._tasks.clear()
        self.num_bytes = 0

    def _settle(self, key: Hashable, done: asyncio.Future[T]) -> None:
        has_failed = done.cancelled() or done.exception() is not None
        if self._tasks.get(key) is not done:
            return
        size_bytes = 0 if has_failed else self._size_bytes(done.result())
        if has_failed or self.num_bytes + size_bytes > self._max_bytes:
            del self._tasks[key]
        else:
            self.num_bytes += size_bytes
