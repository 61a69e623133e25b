"""A controller that lives in another actor's process, as whoever calls it sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workers.errors import JobError


class NotHostedError(JobError):
    """The process lives, and that controller is not in it, or no longer."""


@dataclass(frozen=True, slots=True)
class Hosted:
    """The controller ``name`` in the process of the actor ``host``; its methods are called as an actor's."""

    host: Any
    name: str

    def __getattr__(self, method: str) -> HostedMethod:
        return HostedMethod(lambda *args: self.host.hosted.remote(self.name, method, *args))


@dataclass(frozen=True, slots=True)
class HostedMethod:
    """``remote(*args)`` gives a reference to the answer. It raises RayTaskError of NotHostedError too."""

    remote: Callable[..., Any]
