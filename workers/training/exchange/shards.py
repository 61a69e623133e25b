"""Memory of a bucket on its way over racks: its values in pieces of shards, and the rows that hops send and receive."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, lcm

import torch

from workers.training.exchange.codecs import Codec
from workers.training.exchange.racks import Seating
from workers.training.exchange.rows import Rows

# Of a shard in one piece. With several, hops of one run while others' do; and gloo sends a pair's bulk in one direction
# before it lets the other begin where one rank comes later, so that large pieces halve a link that works both ways.
MOST_VALUES = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The codecs of what goes to a rack's owners, between racks, and ``back``; and what a rank has to do at each."""

    inside: Codec
    across: Codec
    back: Codec
    seating: Seating

    @property
    def num_chunks(self) -> int:
        """Of a shard, between racks: two racks' owners exchange all of it."""
        return 1 if self.seating.num_racks == 2 else self.seating.num_racks

    def shard_numels(self, num_gradients: int) -> list[int]:
        """Values of a shard in each piece of a bucket; every level can encode all that it sends of one."""
        multiple = lcm(self.inside.block, self.back.block, self.across.block * self.num_chunks)
        num_left = ceil(num_gradients / len(self.seating.owners) / multiple)
        most = max(1, MOST_VALUES // multiple)
        num_pieces = ceil(num_left / most)
        return [multiple * (num_left * (i + 1) // num_pieces - num_left * i // num_pieces) for i in range(num_pieces)]


class Shards:
    """One piece. ``values_SN``: its gradients, then their sums; ``tail`` travels with them.

    Rows are ``..._out`` where sent, ``..._in`` where received: ``parts`` go inside a rack, ``racks`` (of shards, or of
    their chunks) across, sums of ``chunks`` back, ``sums`` of shards inside again. ``error_SN`` is None where nothing
    is kept of what is left out.
    """

    def __init__(self, levels: Levels, values_SN: torch.Tensor, tail: torch.Tensor) -> None:
        self.values_SN, self.tail = values_SN, tail
        self.error_SN: torch.Tensor | None = None
        seating, num_chunks, numel = levels.seating, levels.num_chunks, values_SN.shape[1]
        self._shard, self._num_chunks = seating.shard, num_chunks
        self._scratch_N = torch.empty(numel, dtype=torch.float32, device=values_SN.device)
        owns, none = seating.shard is not None, self.tail[:0]
        inside, across = levels.inside, levels.across
        self.parts_out = Rows(inside, len(seating.owners), numel, self.tail)
        self.parts_in = Rows(inside, len(seating.mates) if owns else 0, numel, self.tail)
        num_racks = num_chunks if owns else 0
        self.racks_out = Rows(across, num_racks, numel // num_chunks, self.tail)
        self.racks_in = Rows(across, num_racks, numel // num_chunks, self.tail)
        num_back = num_racks - 1 if num_racks > 1 else 0
        self.chunks_out = Rows(across, min(num_back, 1), numel // num_chunks, none)
        self.chunks_in = Rows(across, num_back, numel // num_chunks, none)
        self.sums_out = Rows(levels.back, 1 if owns else 0, numel, self.tail)
        self.sums_in = Rows(levels.back, len(seating.others(seating.owners)), numel, self.tail)

    def shard_1N(self, number: int | None = None) -> torch.Tensor:
        """A shard's values; this rank's own, where none is named."""
        number = self._shard if number is None else number
        assert number is not None
        return self.values_SN[number : number + 1]

    def chunk_1N(self, number: int) -> torch.Tensor:
        """A chunk of this rank's shard."""
        return self.shard_1N().view(self._num_chunks, -1)[number : number + 1]

    def add_up(self, rows: list[tuple[Rows, int]], out_1N: torch.Tensor) -> None:
        """Write the sum of these rows, added in their order."""
        scratch_1N = self._scratch_N[: out_1N.numel()].view_as(out_1N)
        for index, (place, row) in enumerate(rows):
            if index == 0:
                place.decode(row, out_1N)
            else:
                place.decode(row, scratch_1N)
                out_1N.add_(scratch_1N)

    def encode_own(self, out: Rows, values_1N: torch.Tensor, *, owes: bool) -> None:
        """Encode a piece of this rank's shard, a row of ``out`` for each part of it.

        What the codec leaves out this rank keeps where it ``owes`` that.
        """
        values_RN = values_1N.view(out.num_rows, -1)
        if not owes or self.error_SN is None or not out.has_error:
            out.encode(values_RN)
            return
        lost_RN = self._scratch_N[: values_1N.numel()].view_as(values_RN)
        out.encode(values_RN, lost_RN)
        begin = values_1N.storage_offset() - self.values_SN.storage_offset()
        self.error_SN.view(-1)[begin : begin + lost_RN.numel()].add_(lost_RN.view(-1))


class Bucket:
    """A bucket's gradients, with zeros to the end of the last shard, in ``pieces``."""

    def __init__(self, levels: Levels, flat: torch.Tensor, num_gradients: int) -> None:
        self.flat, self._num_gradients = flat, num_gradients
        numels, num_shards = levels.shard_numels(num_gradients), len(levels.seating.owners)
        self.values = torch.empty(sum(numels) * num_shards, dtype=torch.float32, device=flat.device)
        self._sizes = [numel * num_shards for numel in numels]
        tail = flat[num_gradients:]
        tails = [tail[:0]] * (len(numels) - 1) + [tail]
        parts = zip(torch.split(self.values, self._sizes), tails, strict=True)
        self.pieces = [Shards(levels, values.view(num_shards, -1), tail) for values, tail in parts]

    @property
    def gradients(self) -> torch.Tensor:
        """The values without the zeros."""
        return self.values[: self._num_gradients]

    def load(self) -> None:
        """Take the gradients as they are."""
        self.gradients.copy_(self.flat[: self._num_gradients])
        self.values[self._num_gradients :] = 0.0

    def keep_errors(self, place: torch.Tensor) -> None:
        """Let what the pieces leave out be written here, in memory like ``values``."""
        for piece, error in zip(self.pieces, torch.split(place, self._sizes), strict=True):
            piece.error_SN = error.view_as(piece.values_SN)

    def store(self) -> None:
        """Let the sums be the gradients."""
        self.flat[: self._num_gradients] = self.gradients
