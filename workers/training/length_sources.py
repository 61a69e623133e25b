"""Who tells how long a sample is: ``length`` of a sample that is read for it, or ``length_at`` of its index alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from workers.task import MapDataset
from workers.training import batching, data, memory
from workers.training.batching import Turnstile

_LENGTH_SEED = (1 << 40) + 1  # in the place of a round's number, as evaluation has 1 << 40


class LengthSource(Protocol):
    """``is_reading``: a sample is read to be asked."""

    @property
    def is_reading(self) -> bool: ...

    def ask(self, index: int) -> Callable[[], object]:
        """What gives the length, once all is there that is needed for it. Raises DataError, or lack of memory."""
        ...

    def place(self, index: int) -> str:
        """What is asked, as its owner would write it."""
        ...


@dataclass(frozen=True, slots=True)
class BySample:
    """Reads a sample under a seed of its own index, so that random data have one length on all ranks.

    ``name`` is what the user calls the dataset. Changes the random generators.
    """

    dataset: MapDataset
    length: Callable[[Any], int]
    seed: int
    name: str
    turnstile: Turnstile = field(default_factory=Turnstile)
    is_reading: bool = True

    def ask(self, index: int) -> Callable[[], object]:
        batching.seed_all(self.seed, _LENGTH_SEED, index)
        at = self.turnstile.place
        with self.turnstile.lock, at.reading(self.name):
            (sample,) = data.fetch(self.dataset, [index], self.name, memory.is_out_of_memory, at.note)
        return lambda: self.length(sample)

    def place(self, index: int) -> str:
        return f"length({self.name}[{index}])"


@dataclass(frozen=True, slots=True)
class ByIndex:
    """Asks the task, which knows by the dataset and the index; no sample is read, though the dataset may be."""

    dataset: MapDataset
    length_at: Callable[[MapDataset, int], int]
    name: str
    turnstile: Turnstile = field(default_factory=Turnstile)
    is_reading: bool = False

    def ask(self, index: int) -> Callable[[], object]:
        return lambda: self._told(index)

    def place(self, index: int) -> str:
        return f"length_at({self.name}, {index})"

    def _told(self, index: int) -> object:
        at = self.turnstile.place
        with self.turnstile.lock, at.reading(self.name):
            at.note(index)
            return self.length_at(self.dataset, index)
