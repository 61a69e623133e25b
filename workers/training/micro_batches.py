"""Micro-batches: one rank's part of a batch as forward passes, in the batch's own order where nothing else is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from workers.training.batching import pieces
from workers.training.micro_tuning import MicroTuning
from workers.training.pairs import joined
from workers.training.token_tuning import TokenTuning


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Samples of one forward pass.

    ``position`` is that of one of them in the batch: no other micro-batch has it, whatever the ranks. ``indexes`` are
    the dataset's. ``tokens`` is the sum of their lengths, ``longest`` the largest of them, ``padded_tokens`` what they
    take up with their padding, if any; all are 0 where lengths are not told. ``cost`` is what is halved when memory
    runs out: tokens or samples, and 1 for one sample, of which there is no half.
    """

    position: int
    indexes: list[int]
    tokens: int = 0
    longest: int = 0
    padded_tokens: int = 0
    cost: int


class Draw(Protocol):
    """One rank's part of a batch: ``num_samples`` in all, whatever the micro-batches.

    ``unit`` is what ``MicroBatch.cost`` is counted in; ``checksum`` is the same on all ranks that divide a batch alike.
    """

    @property
    def num_samples(self) -> int: ...
    @property
    def unit(self) -> str: ...
    @property
    def checksum(self) -> float: ...

    def micro_batches(self, skip: int = 0) -> Iterator[MicroBatch]:
        """All of the part but its first ``skip`` samples, in micro-batches as large as has been found to fit."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InOrder:
    """Positions [begin, end) of a batch, one after the other; parts follow the ranks.

    ``indexes`` gives the dataset's indexes of positions [begin, end). ``most`` samples make the largest micro-batch;
    where they are to be ``is_paired``, one that is left over is joined to them.
    """

    begin: int
    end: int
    most: int
    micro: MicroTuning | TokenTuning
    indexes: Callable[[int, int], list[int]]
    unit: str = "samples"
    checksum: float = 0.0
    is_paired: bool = False

    @property
    def num_samples(self) -> int:
        return self.end - self.begin

    def micro_batches(self, skip: int = 0) -> Iterator[MicroBatch]:
        cuts = [*pieces(self.begin + skip, self.end, self.micro.within(self.most))]
        for begin, end in joined(cuts) if self.is_paired else cuts:
            yield MicroBatch(position=begin, indexes=self.indexes(begin, end), cost=end - begin)
