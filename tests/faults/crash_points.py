"""Crash points at every port: the nth call of a method ends the process, or fails, before or after its effect.

Nothing in the service knows of them: a port is wrapped where a test's own entry point puts the parts together.
"""

from __future__ import annotations

import inspect
import os
import signal
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class When(StrEnum):
    """BEFORE the effect: it never happened. AFTER it: it is done, and nobody was told."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashPoint:
    """``nth`` counts calls of the method from 1, those that had their effect for AFTER.

    With ``error`` the call raises it instead of ending the process. ``part`` is the one of the API's store.
    """

    method: str
    when: When
    nth: int = 1
    error: Exception | None = None
    part: str = "jobs"

    def __str__(self) -> str:
        return f"{self.method}-{self.when}-{self.nth}"

    def strike(self) -> None:
        """Die without a word, as by SIGKILL, or raise."""
        if self.error is not None:
            raise self.error
        os.kill(os.getpid(), signal.SIGKILL)


class Armed:
    """A port with a crash point; all else passes through."""

    def __init__(self, port: Any, point: CrashPoint) -> None:
        self._port, self._point = port, point
        self._num_begun = self._num_done = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if name != self._point.method:
            return method

        async def call(*arguments: Any, **named: Any) -> Any:
            self._num_begun += 1
            if self._point.when is When.BEFORE and self._num_begun == self._point.nth:
                self._point.strike()
            answer = await method(*arguments, **named)
            self._num_done += 1
            if self._point.when is When.AFTER and self._num_done == self._point.nth:
                self._point.strike()
            return answer

        return call


def methods_of(port: type) -> list[str]:
    """The names of all calls of a port, in their order."""
    return [name for name, value in vars(port).items() if inspect.iscoroutinefunction(value)]
