"""Where members of a generation find each other: a small key-value store in the controller.

It stands in for a TCP store: no port, no host that can die, and a generation that the controller has
given up fails at once for everybody who waits in it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from workers.errors import JobError

MAX_GROUPS = 8
MAX_KEYS = 100_000
MAX_VALUE_BYTES = 4 * 2**20


class RendezvousError(JobError):
    """A rendezvous cannot go on: given up, timed out, or its controller cannot be reached."""


class SupersededError(RendezvousError):
    """The generation was given up by the controller; leave it and wait for a plan."""


@dataclass(slots=True)
class _Group:
    values: dict[str, bytes] = field(default_factory=dict)
    arrivals: dict[str, asyncio.Event] = field(default_factory=dict)


class Rendezvous:
    """The keys of the newest generations; all methods are for one event loop.

    A group is named ``"<term>/<generation>"`` and exists from its first use. Generations only grow, so
    whatever is at or below a superseded one, or older than the ``MAX_GROUPS`` newest, has failed.
    """

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._superseded = 0

    def set(self, group: str, key: str, value: bytes) -> None:
        """Store a value and wake those who wait for it. Raises SupersededError, RendezvousError past the bounds."""
        found = self._group(group)
        if len(value) > MAX_VALUE_BYTES or (len(found.values) >= MAX_KEYS and key not in found.values):
            raise RendezvousError(
                f"key {key!r} of {len(value)} bytes does not fit into rendezvous {group}, which has "
                f"{len(found.values)} keys; at most {MAX_VALUE_BYTES} bytes a value and {MAX_KEYS} keys"
            )
        found.values[key] = value
        if (arrival := found.arrivals.pop(key, None)) is not None:
            arrival.set()

    async def get(self, group: str, key: str, timeout_s: float) -> bytes:
        """The value, waited for at most ``timeout_s``.

        Raises SupersededError as soon as the generation is given up, RendezvousError when time is up.
        """
        found = self._group(group)
        if key not in found.values:
            arrival = found.arrivals.setdefault(key, asyncio.Event())
            try:
                async with asyncio.timeout(timeout_s):
                    await arrival.wait()
            except TimeoutError:
                raise RendezvousError(
                    f"rendezvous {group}: nobody set {key!r} within {timeout_s:g} s; a member is missing or slow"
                ) from None
            if self._groups.get(group) is not found:
                raise _superseded(group)
        return found.values[key]

    def add(self, group: str, key: str, amount: int) -> int:
        """Add to a counter, which begins at 0, and return its new value. Raises as ``set``."""
        found = self._group(group)
        total = int(found.values.get(key, b"0")) + amount
        self.set(group, key, str(total).encode())
        return total

    def check(self, group: str, keys: list[str]) -> bool:
        """Whether all keys are set; False for a superseded generation."""
        found = self._groups.get(group)
        return found is not None and all(key in found.values for key in keys)

    def supersede(self, generation: int) -> None:
        """Give up every generation up to this one: who waits in them fails now, who comes later at once."""
        self._superseded = max(self._superseded, generation)
        for name in [name for name in self._groups if _generation(name) <= self._superseded]:
            self._drop(name)

    def _group(self, name: str) -> _Group:
        if _generation(name) <= self._superseded:
            raise _superseded(name)
        if name not in self._groups:
            self._groups[name] = _Group()
            while len(self._groups) > MAX_GROUPS:
                oldest = min(self._groups, key=_generation)
                self._superseded = max(self._superseded, _generation(oldest))
                self._drop(oldest)
            if name not in self._groups:
                raise _superseded(name)
        return self._groups[name]

    def _drop(self, name: str) -> None:
        dropped = self._groups.pop(name)
        for arrival in dropped.arrivals.values():
            arrival.set()


def _generation(group: str) -> int:
    return int(group.rpartition("/")[2])


def _superseded(group: str) -> SupersededError:
    return SupersededError(f"rendezvous {group} was given up by the controller; leave it and wait for a plan")
