"""Who draws what of batches of samples of unequal lengths, and in which micro-batches."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from workers.errors import DataError
from workers.plan import Plan
from workers.training.at_random import at_random
from workers.training.batching import own_part
from workers.training.bounds import Bounds
from workers.training.by_length import PASS_SHARE, deal_by_length, rejoined
from workers.training.lengths import Lengths
from workers.training.micro_batches import MicroBatch
from workers.training.packed import packed, shares
from workers.training.pairs import joined_by_length, shared_by_length
from workers.training.pass_share import PassShare
from workers.training.token_tuning import TokenTuning

NUM_CHECKSUMS = 16_381
"""A sum of a thousand checksums below it is exact in fp32."""


def check_division(own: float, summed: float, num_ranks: int, name: str) -> None:
    """Check that all ranks dealt alike, by this rank's checksum and the sum of all; every rank must call it.

    Raises DataError where their lengths differ: some samples may have been drawn twice, and others not.
    """
    if abs(summed - num_ranks * own) > 0.5:
        raise DataError(
            f"length told this rank other lengths of {name} than another rank (checksum {own:g} here, {summed:g} over "
            f"{num_ranks} ranks); make a sample's length depend on its index alone"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Samples of one micro-batch: from long to short if by length, else and where equally long by their positions."""

    positions_M: NDArray[np.int64]
    indexes_M: NDArray[np.int64]
    lengths_M: NDArray[np.int64]

    def part(self, begin: int, end: int, bounds: Bounds) -> MicroBatch:
        lengths_M, num_samples = self.lengths_M[begin:end], end - begin
        taken = bounds.taken(lengths_M)
        return MicroBatch(
            position=int(self.positions_M[begin]),
            indexes=self.indexes_M[begin:end].tolist(),
            tokens=int(lengths_M.sum()),
            longest=int(lengths_M.max()),
            padded_tokens=taken,
            cost=taken if num_samples > 1 else 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ByLength:
    """Pieces that were cut and dealt, by length or at random; ``micro`` bounds what they take up further where it must.

    That bound is this rank's own: what is dealt to whom does not depend on it.
    """

    pieces: list[_Piece]
    bounds: Bounds
    micro: TokenTuning
    checksum: float
    is_paired: bool = False

    @property
    def unit(self) -> str:
        return self.bounds.unit

    @property
    def num_samples(self) -> int:
        return sum(len(piece.indexes_M) for piece in self.pieces)

    def micro_batches(self, skip: int = 0) -> Iterator[MicroBatch]:
        for piece in self.pieces:
            num_samples = len(piece.indexes_M)
            begin, skip = min(skip, num_samples), max(0, skip - num_samples)
            while begin < num_samples:
                lengths_M = piece.lengths_M[begin:]
                most = self.micro.within(self.bounds.taken(lengths_M))
                limit = replace(self.bounds, max_tokens=most, max_samples=None)  # pieces are within that already
                end = begin + limit.fitting(lengths_M)
                if self.is_paired and num_samples - end == 1 and end - begin >= 3:
                    end -= 1
                yield piece.part(begin, end, self.bounds)
                begin = end


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealer:
    """Divides batches by length among the members of a plan. ``micro`` is in what ``bounds`` count.

    ``passes``: what passes cost by themselves on this rank, None where they stay as dealt. ``is_paired``: passes of a
    single sample are joined to others, beyond the bounds if need be.
    """

    lengths: Lengths
    bounds: Bounds
    micro: TokenTuning
    passes: PassShare | None = None
    is_paired: bool = False

    def can_deal(self, batch_N: NDArray[np.int64], check: Callable[[], None]) -> bool:
        """Whether this batch can be divided without reading a sample for its length; ``check`` as in ``deal``."""
        return self.lengths.are_known(batch_N, check)

    def deal(self, plan: Plan, rank: int, batches: Iterable[NDArray[np.int64]], check: Callable[[], None]) -> ByLength:
        """The part of ``rank`` in batches of the dataset's indexes; every rank must be given the same ones.

        ``check`` is called now and then while lengths are learned. Raises what ``Lengths.of`` raises.
        """
        weights = _weights(plan)
        pieces, begin, crc = [], 0, int(self.bounds.is_packed)  # ranks that pack deal otherwise
        for indexes_N in batches:
            lengths_N = self.lengths.of(indexes_N, check)
            crc = zlib.crc32(lengths_N.tobytes(), crc)
            for own_M in self._own(lengths_N, weights, rank):
                pieces.append(_Piece(positions_M=begin + own_M, indexes_M=indexes_N[own_M], lengths_M=lengths_N[own_M]))
            begin += len(indexes_N)
        return self._dealt(pieces, crc)

    def deal_at_random(self, plan: Plan, rank: int, batch_N: NDArray[np.int64], check: Callable[[], None]) -> ByLength:
        """As ``deal``, of one batch and not by length: parts are as large in samples as the plan has them.

        Where tokens have no bound, this rank's largest micro-batch by length is one: nobody knows what memory is left.
        One that memory has set holds for any samples, as others do.
        """
        lengths_N, bounds = self.lengths.of(batch_N, check), self.bounds
        begin, end = own_part(plan, rank, len(batch_N))
        if bounds.max_tokens is None:
            by_length = self._own(lengths_N, _weights(plan), rank)
            largest = max((bounds.taken(lengths_N[own_M]) for own_M in by_length), default=1)
            bounds = replace(bounds, max_tokens=largest)
        assert bounds.max_tokens is not None
        own = at_random(lengths_N, begin, end, replace(bounds, max_tokens=self.micro.within(bounds.max_tokens)))
        pieces = [_Piece(positions_M=own_M, indexes_M=batch_N[own_M], lengths_M=lengths_N[own_M]) for own_M in own]
        crc = zlib.crc32(lengths_N.tobytes(), int(self.bounds.is_packed))
        return self._dealt(pieces, crc)

    def _dealt(self, pieces: list[_Piece], crc: int) -> ByLength:
        checksum = float(crc % NUM_CHECKSUMS)
        return ByLength(
            pieces=pieces, bounds=self.bounds, micro=self.micro, checksum=checksum, is_paired=self.is_paired
        )

    def _own(self, lengths_N: NDArray[np.int64], weights: Sequence[float], rank: int) -> list[NDArray[np.int64]]:
        """Positions of the micro-batches of ``rank``."""
        if self.bounds.is_packed:
            return packed(shares(lengths_N, weights)[rank], lengths_N, self.bounds)
        held = deal_by_length(lengths_N, weights, self.bounds)
        own = (shared_by_length(held, lengths_N) if self.is_paired else held)[rank]
        share = PASS_SHARE if self.passes is None else self.passes.share
        if self.passes is not None and share != PASS_SHARE and own:
            own = rejoined(own, lengths_N, share, replace(self.bounds, max_tokens=self._most(own, lengths_N)))
        return joined_by_length(own) if self.is_paired else own

    def _most(self, own: Sequence[NDArray[np.int64]], lengths_N: NDArray[np.int64]) -> int | None:
        """Where tokens have no bound: what was found to fit, or what the largest pass takes already."""
        most = None if self.passes is None else self.passes.max_tokens
        if most is None or self.bounds.max_tokens is not None:
            return self.bounds.max_tokens
        return max(most, *(self.bounds.taken(lengths_N[own_M]) for own_M in own))


def _weights(plan: Plan) -> list[float]:
    return [member.weight for member in sorted(plan.members, key=lambda m: m.rank)]
