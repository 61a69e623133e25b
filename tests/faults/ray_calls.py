"""Crash points within the calls of the real cluster's port: between one call on Ray and the next.

``start_controller.2`` is the second call on Ray that one call of ``start_controller`` makes.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from service.cluster import CALL_S, Cluster
from tests.faults.crash_points import CrashPoint, Trigger, When

T = TypeVar("T")


class DividedCluster(Cluster):
    """A driver of a real Ray that dies right after one of the calls on it that one method makes."""

    def __init__(self, address: str, namespace: str, point: CrashPoint) -> None:
        super().__init__(address, namespace)
        self._trigger = Trigger(point)
        self._method = point.method.partition(".")[0]
        # Calls of the method that go on at once count apart; what others do does not count.
        self._num_made = ContextVar[int | None]("num_made", default=None)
        setattr(self, self._method, self._counted(getattr(self, self._method)))

    def _counted(self, method: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        @functools.wraps(method)
        async def call(*arguments: Any, **named: Any) -> T:
            before = self._num_made.set(0)
            try:
                return await method(*arguments, **named)
            finally:
                self._num_made.reset(before)

        return call

    async def _ask(self, name: str, reference: Awaitable[T], bound_s: float) -> T:
        try:
            return await super()._ask(name, reference, bound_s)
        finally:
            self._pass()  # the answer may have been its death

    async def _blocking(self, call: Callable[[], T], bound_s: float = CALL_S) -> T:
        try:
            return await super()._blocking(call, bound_s)
        finally:
            self._pass()

    def _pass(self) -> None:
        if (num_made := self._num_made.get()) is not None:
            self._num_made.set(num_made + 1)
            if self._trigger.pull(f"{self._method}.{num_made + 1}", When.AFTER):
                self._trigger.point.strike()
