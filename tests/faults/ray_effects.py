"""Crash points within one blocking call on Ray's head: between one effect of it and the next.

``keep_spares/take`` is where a call of ``keep_spares`` has just taken a spare. What has an effect is named by the
function of ours in which it lies, or by the actor's method that is called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ray

from service.cluster import CALL_S, Cluster
from tests.faults.crash_points import CrashPoint, Trigger, When
from workers.control import spares


class FollowedCluster(Cluster):
    """A driver of a real Ray that dies right after an effect on it that one method has."""

    def __init__(self, address: str, namespace: str, point: CrashPoint) -> None:
        super().__init__(address, namespace)
        self._trigger = Trigger(point)
        self._effect = point.method.partition("/")[2]
        # What it is called by is in no other call of a reconciler, and the module's is this process's own copy.
        for holder in (self._roster, self._spares, spares):
            if hasattr(holder, self._effect):
                setattr(holder, self._effect, self._followed(getattr(holder, self._effect)))
                return
        self._roster.spare = self._followed_actor(self._roster.spare)  # type: ignore[method-assign]

    def _followed(self, act: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(act)
        def call(*arguments: Any, **named: Any) -> Any:
            answer = act(*arguments, **named)
            self._pass()
            return answer

        return call

    def _followed_actor(self, find: Callable[..., Any]) -> Callable[..., Any]:
        def found(*arguments: Any) -> Any:
            actor = find(*arguments)
            ask = getattr(actor, self._effect).remote
            # A call is only on its way when Ray gives a reference; once it is answered it has had its effect.
            answered = self._followed(lambda *asked: ray.get(ask(*asked), timeout=CALL_S))
            setattr(actor, self._effect, SimpleNamespace(remote=answered))
            return actor

        return found

    def _pass(self) -> None:
        if self._trigger.pull(self._trigger.point.method, When.AFTER):
            self._trigger.point.strike()
