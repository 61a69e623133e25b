"""What workers need of nodes, and the room that nodes have for them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from service.records import NodeView
from workers.spec_parts import Resources

KINDS = ("cpus", "gpus", "memory_bytes")
EPSILON = 1e-6

Amounts: TypeAlias = Mapping[str, float]
"""By kind, of ``KINDS``; what is left out is 0."""


class Place(Protocol):
    """Where a worker may sit; ``has_gpus``: at all, in use or not."""

    @property
    def has_gpus(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Need:
    """What one worker takes of a node: ``usual``, or of a node that has no GPUs at all ``instead``, where it may."""

    usual: Amounts
    instead: Amounts | None = None

    def on(self, place: Place) -> Amounts:
        """What it takes there."""
        return self.usual if self.instead is None or place.has_gpus else self.instead

    def prefers(self, place: Place) -> bool:
        """Whether it goes there before others: for a GPU, where it could do without."""
        return self.instead is not None and place.has_gpus

    @property
    def shapes(self) -> tuple[Amounts, Amounts]:
        """What it takes of a node with GPUs, and of one without."""
        return self.usual, self.usual if self.instead is None else self.instead

    @property
    def most_cpus(self) -> float:
        """Wherever it sits."""
        return max(shape.get("cpus", 0.0) for shape in self.shapes)

    @property
    def in_words(self) -> str:
        """``1 CPU, 1 GPU``, or ``1 CPU, 1 GPU (on nodes without GPUs 4 CPU)``."""
        usual, other = (_told(shape) for shape in self.shapes)
        return usual if self.instead is None else f"{usual} (on nodes without GPUs {other})"


@dataclass(slots=True)
class Room:
    """What is left of a node; whoever takes some changes it."""

    has_gpus: bool
    left: dict[str, float]

    def holds(self, amounts: Amounts) -> bool:
        """Whether so much is left."""
        return all(amounts.get(kind, 0.0) <= self.left.get(kind, 0.0) + EPSILON for kind in KINDS)

    def take(self, amounts: Amounts, times: int = 1) -> None:
        """Take so much, whether it is left or not."""
        for kind in KINDS:
            self.left[kind] = self.left.get(kind, 0.0) - times * amounts.get(kind, 0.0)

    def copy(self) -> Room:
        """One to try things on."""
        return Room(self.has_gpus, dict(self.left))


def need_of(resources: Resources) -> Need:
    """What one worker takes of a node."""
    usual = _amounts(resources)
    return Need(usual, None if resources.cpus_instead is None else _amounts(resources.without_gpu()))


def empty(nodes: Iterable[NodeView]) -> list[Room]:
    """The room of nodes where nobody sits."""
    return [Room(node.has_gpus, dict(node.total)) for node in nodes if node.is_alive]


def free_now(nodes: Iterable[NodeView]) -> list[Room]:
    """The room that nodes have as they were seen."""
    return [Room(node.has_gpus, dict(node.free)) for node in nodes if node.is_alive]


def take(need: Need, rooms: Sequence[Room], count: int) -> list[Amounts]:
    """Take room for up to ``count`` workers; what each of them takes that found some."""
    taken: list[Amounts] = []
    for room in sorted(rooms, key=need.prefers, reverse=True):
        amounts = need.on(room)
        while len(taken) < count and room.holds(amounts):
            room.take(amounts)
            taken.append(amounts)
    return taken


def fit(need: Need, rooms: Iterable[Room], count: int) -> int:
    """For how many workers of up to ``count`` there is room; nothing is taken."""
    return len(take(need, [room.copy() for room in rooms], count))


def in_words(kind: str, value: float) -> str:
    """An amount of a kind."""
    if kind == "memory_bytes":
        return f"{value / 2**30:.3g} GiB of memory"
    return f"{value:g} {'CPU' if kind == 'cpus' else 'GPU'}"


def _told(amounts: Amounts) -> str:
    return ", ".join(in_words(kind, amounts[kind]) for kind in KINDS if amounts.get(kind))


def _amounts(resources: Resources) -> Amounts:
    memory_bytes = float(resources.memory_bytes or 0)
    return {"cpus": resources.cpus, "gpus": resources.gpus_taken, "memory_bytes": memory_bytes}
