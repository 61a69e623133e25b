"""Crash points at every port: the nth call of a method ends the process, or fails, before or after its effect.

Nothing in the service knows of them: a port is wrapped where a test's own entry point puts the parts together.
"""

from __future__ import annotations

import inspect
import os
import signal
from contextvars import ContextVar
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

    With ``error`` the call raises it instead of ending the process. ``part`` is the one of the API's store. With
    ``commit`` it lies within the first call, right after its so manieth commit. AFTER a ``is_write`` is after a call
    that committed something: after another one nothing is done that was not before.
    """

    method: str
    when: When
    nth: int = 1
    error: Exception | None = None
    part: str = ""
    commit: int = 0
    is_write: bool = False

    def __str__(self) -> str:
        return f"{self.method}-{self.when}-{self.nth}" + (f"-commit-{self.commit}" if self.commit else "")

    @property
    def is_within_a_call(self) -> bool:
        """Whether it lies between two calls on Ray, as ``ray_calls`` has them."""
        return "." in self.method

    @property
    def is_within_a_blocking_call(self) -> bool:
        """Whether it lies between two effects on Ray, as ``ray_effects`` has them."""
        return "/" in self.method

    @property
    def last_words(self) -> str:
        """The line that a process writes where it strikes."""
        return f"the crash point {self} strikes\n"

    def strike(self) -> None:
        """Die as by SIGKILL, or raise; the process's log tells that this was the reason."""
        print(self.last_words, end="", flush=True)
        if self.error is not None:
            raise self.error
        os.kill(os.getpid(), signal.SIGKILL)


class Trigger:
    """Tells the one moment at which a crash point strikes."""

    def __init__(self, point: CrashPoint) -> None:
        self.point = point
        self.has_struck = False
        self._num_passed = 0

    def pull(self, method: str, when: When) -> bool:
        """Whether this is the moment; it comes once."""
        if self.has_struck or (method, when) != (self.point.method, self.point.when):
            return False
        self._num_passed += 1
        self.has_struck = self._num_passed == self.point.nth
        return self.has_struck


_num_commits: ContextVar[int | None] = ContextVar("commits of the call of a crash point", default=None)


class Armed:
    """A port with a crash point; all else passes through."""

    def __init__(self, port: Any, point: CrashPoint) -> None:
        self._port, self._trigger = port, Trigger(point)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if name != self._trigger.point.method:
            return method

        async def call(*arguments: Any, **named: Any) -> Any:
            _num_commits.set(0)
            try:
                self._pass(name, When.BEFORE)
                answer = await method(*arguments, **named)
                self._pass(name, When.AFTER)
            finally:
                _num_commits.set(None)
            return answer

        return call

    def _pass(self, name: str, when: When) -> None:
        point = self._trigger.point
        is_idle = point.is_write and when is When.AFTER and not _num_commits.get()
        if not point.commit and not is_idle and self._trigger.pull(name, when):
            point.strike()


class Committing:
    """A database's transactions, with a crash point after a commit of a call of the ``Armed`` port."""

    def __init__(self, transactions: Any, point: CrashPoint) -> None:
        self._transactions, self._point = transactions, point

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transactions, name)

    async def write(self, *arguments: Any) -> Any:
        answer = await self._transactions.write(*arguments)
        if (number := _num_commits.get()) is not None:
            _num_commits.set(number + 1)
            if number + 1 == self._point.commit:
                self._point.strike()
        return answer


def methods_of(port: type) -> list[str]:
    """The names of all calls of a port, in their order."""
    return [name for name, value in vars(port).items() if inspect.iscoroutinefunction(value)]
