"""One micro-batch read from the dataset: the same content whoever reads it, and when."""

from __future__ import annotations

from dataclasses import dataclass

from workers.task import Batch
from workers.training.batching import Batcher, seed_all


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A micro-batch to be read: that of this round whose first sample has this ``position`` in the batch."""

    round: int
    position: int
    indexes: tuple[int, ...]


class Reader:
    """Reads micro-batches of one dataset; ``seed`` is the job's."""

    def __init__(self, batcher: Batcher, seed: int) -> None:
        self.batcher, self.seed_of_job = batcher, seed

    def read(self, wanted: Wanted) -> Batch:
        """A batch on the CPU, what is random in it seeded by its round and position.

        Changes the process's random generators. Raises what ``Batcher.read`` raises.
        """
        if not self.batcher.is_plain:
            self.seed(wanted)
        return self.batcher.read(wanted.indexes)

    def seed(self, wanted: Wanted) -> None:
        """Let what is drawn next be what this micro-batch draws."""
        seed_all(self.seed_of_job, wanted.round, wanted.position)

    def read_unseeded(self, wanted: Wanted) -> Batch:
        """The same, beside a thread that draws numbers: for data in which nothing is random."""
        return self.batcher.read(wanted.indexes)
