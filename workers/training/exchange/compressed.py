"""Gradients in fewer bytes: every rank sums one chunk of what all ranks encoded, and gives the others the sum.

A sum of codes is no code, so an all-reduce cannot carry them. What it does in two halves is done here with a codec
between: all-to-all of chunks, decode and add in fp32, encode the sum, all-gather (as qgZ of ZeRO++, arXiv 2306.10209).
A rank sends 2 (n - 1) / n times a bucket's bytes, as in an all-reduce, whatever the number n of ranks. Two ranks send
each other all they have: as many bytes, one hop and one rounding less. A bucket goes in pieces: while one is on its
way the next is encoded, and the one before decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import torch

from workers.training.exchange.codecs import Codec
from workers.training.exchange.coding import Coding
from workers.training.exchange.residual import Residual
from workers.training.exchange.rows import Rows
from workers.training.exchange.schemes import InFlight, Summed
from workers.training.state import StepState
from workers.training.world import Transfer, World

MOST_VALUES = 2**17
"""Of a row in one piece; gloo sends a pair's bulk one way before it lets the other begin where one rank is later."""

MOST_VALUES_THERE = 2**23
"""The same on an accelerator, where a piece costs a dozen launches of kernels, each some microseconds of the host's."""


class _Piece:
    """A piece's way: rows of ``values_RN`` go to ranks as ``parts_out``, and of every rank comes one of ``parts_in``.

    This rank's sum of those is ``sum_out``, and that of every chunk comes as ``sums_in``. ``gradients`` and ``tail``
    are views of the bucket, the tail empty but for the last piece's. ``error_RN`` is None where nothing is kept of what
    is left out; ``scratch_N`` is shared by all pieces.
    """

    def __init__(
        self,
        codec: Codec,
        num_ranks: int,
        values_RN: torch.Tensor,
        gradients: torch.Tensor,
        tail: torch.Tensor,
        scratch_N: torch.Tensor,
    ) -> None:
        num_rows, numel = values_RN.shape
        self.values_RN, self.gradients, self.tail = values_RN, gradients, tail
        self.parts_out, self.parts_in = (Rows(codec, num, numel, tail) for num in (num_rows, num_ranks))
        sums = (1, num_ranks) if num_ranks > 2 else (0, 0)  # two ranks have all they need in one hop
        self.sum_out, self.sums_in = (Rows(codec, num, numel, tail[:0]) for num in sums)
        self.decoded_WN = scratch_N[: num_ranks * numel].view(num_ranks, numel)
        self.error_RN: torch.Tensor | None = None

    def encode(self) -> None:
        self.parts_out.put_tail(self.tail)
        self.parts_out.encode(self.values_RN, self.error_RN)

    def sum_parts(self) -> torch.Tensor:
        """The sum of every rank's row, (1, N); the tails are added up as well, in the order of the ranks."""
        self.parts_in.decode_all(self.decoded_WN)
        if self.tail.numel() > 0:
            torch.sum(self.parts_in.tails_RT, dim=0, out=self.tail)
        return self.decoded_WN.sum(dim=0, keepdim=True)

    def store(self, values: torch.Tensor) -> None:
        """Let these be the gradients."""
        self.gradients.copy_(values.view(-1)[: self.gradients.numel()])


class _Bucket:
    """A bucket's gradients in fp32, with zeros to the end of the rows, in ``pieces``: ``most`` of a row in each."""

    def __init__(self, flat: torch.Tensor, num_gradients: int, codec: Codec, num_ranks: int, most: int) -> None:
        num_rows = _num_rows(num_ranks)
        numels = _row_numels(num_gradients, num_rows, codec, most)
        self.flat = flat
        self.values_N = torch.zeros(num_rows * sum(numels), dtype=torch.float32, device=flat.device)
        self.gradients = self.values_N[:num_gradients]
        scratch_N = torch.empty(num_ranks * max(numels), dtype=torch.float32, device=flat.device)
        self.pieces, begin = list[_Piece](), 0
        for numel in numels:
            end = begin + num_rows * numel
            values_RN = self.values_N[begin:end].view(num_rows, numel)
            gradients, tail = (
                flat[begin : min(end, num_gradients)],
                flat[num_gradients if end >= num_gradients else flat.numel() :],
            )
            self.pieces.append(_Piece(codec, num_ranks, values_RN, gradients, tail, scratch_N))
            begin = end

    def load(self) -> None:
        self.gradients.copy_(self.flat[: self.gradients.numel()])
        self.values_N[self.gradients.numel() :] = 0.0

    def keep_errors(self, errors_N: torch.Tensor) -> None:
        """Let what is left out be kept there, in the order of the gradients."""
        parts = torch.split(errors_N, [piece.values_RN.numel() for piece in self.pieces])
        for piece, part in zip(self.pieces, parts, strict=True):
            piece.error_RN = part.view_as(piece.values_RN)


class _Exchanged:
    """Both ranks of two have sent all; each adds the same bytes in the same order."""

    def __init__(self, piece: _Piece, coding: Coding, transfer: Transfer) -> None:
        self._piece, self._coding, self._transfer = piece, coding, transfer

    def forward(self) -> bool:
        return False

    def wait(self) -> None:
        self._transfer.wait()
        with self._coding.decode:
            self._piece.store(self._piece.sum_parts())


class _Scattered:
    """Everybody's share of this rank's chunk is under way, then the chunks' sums."""

    def __init__(self, piece: _Piece, coding: Coding, world: World, transfer: Transfer) -> None:
        self._piece, self._coding, self._world, self._transfer = piece, coding, world, transfer
        self._is_back = False

    def forward(self) -> bool:
        if self._is_back:
            return False
        self._transfer.wait()
        piece = self._piece
        with self._coding.decode:
            summed_1N = piece.sum_parts()
        with self._coding.encode:
            error_1N = None if piece.error_RN is None else torch.empty_like(summed_1N)
            piece.sum_out.encode(summed_1N, error_1N)
            if piece.error_RN is not None and error_1N is not None:
                # What the sum lost, its owner owes to all.
                piece.error_RN[self._world.rank].add_(error_1N[0])
        self._transfer = self._world.all_gather(piece.sums_in.bytes_RB, piece.sum_out.bytes_RB)
        self._is_back = True
        return False

    def wait(self) -> None:
        self.forward()
        self._transfer.wait()
        with self._coding.decode:
            self._piece.sums_in.decode_all(self._piece.decoded_WN)
            self._piece.store(self._piece.decoded_WN)


class _Pieces:
    """A bucket under way, whose pieces take their hops one after the other."""

    def __init__(self, pieces: Sequence[InFlight]) -> None:
        self._pieces = pieces

    def forward(self) -> bool:
        for piece in self._pieces:
            piece.forward()
        return False

    def wait(self) -> None:
        self.forward()
        for piece in self._pieces:
            piece.wait()


class Compressed:
    """A ``Scheme``: gradients by ``codec``, with error feedback where that has an error worth keeping."""

    blurs_alone = False
    staged: Sequence[StepState] = ()

    def __init__(self, codec: Codec, residual: Residual) -> None:
        self.name, self.blurs_norm = codec.name, codec.blurs_norm
        self._codec, self._residual, self.coding = codec, residual, Coding()
        self._buckets: dict[int, _Bucket] = {}
        self._group = (0, 0)

    def is_relayed(self, num_ranks: int) -> bool:
        return num_ranks > 2

    def prepare(self, shapes: Sequence[Sequence[torch.Size]]) -> None:
        return

    def begin(self, round: int) -> None:
        return

    def start(self, number: int, flat: torch.Tensor, num_gradients: int, world: World) -> InFlight | None:
        if world.size == 1:
            self._residual.add_to(number, flat[:num_gradients])
            self._residual.stage_nothing(number)
            return None
        if num_gradients == 0:
            transfer = world.all_reduce(flat)
            return None if transfer is None else Summed(transfer)
        bucket = self._bucket(number, flat, num_gradients, world)
        with self.coding.encode:
            bucket.load()
            self._residual.add_to(number, bucket.gradients)
            if self._codec.has_error:
                bucket.keep_errors(self._residual.place(number, bucket.values_N))
            else:
                self._residual.stage_nothing(number)
        return _Pieces([self._begin(piece, world) for piece in bucket.pieces])

    def _begin(self, piece: _Piece, world: World) -> InFlight:
        with self.coding.encode:
            piece.encode()
        received, sent = piece.parts_in.bytes_RB, piece.parts_out.bytes_RB
        if world.size == 2:
            return _Exchanged(piece, self.coding, world.all_gather(received, sent))
        return _Scattered(piece, self.coding, world, world.all_to_all(received, sent))

    def _bucket(self, number: int, flat: torch.Tensor, num_gradients: int, world: World) -> _Bucket:
        # Ranks of which some are on accelerators send each other pieces as those on the host do.
        is_there = flat.device.type != "cpu" and not world.is_mixed
        group = (world.size, MOST_VALUES_THERE if is_there else MOST_VALUES)
        if group != self._group:
            self._buckets, self._group = {}, group
        found = self._buckets.get(number)
        if found is None or found.flat is not flat:
            found = self._buckets[number] = _Bucket(flat, num_gradients, self._codec, *group)
        return found


def _num_rows(num_ranks: int) -> int:
    """One for each rank's chunk, or all to the only other rank."""
    return 1 if num_ranks == 2 else num_ranks


def _row_numels(num_gradients: int, num_rows: int, codec: Codec, most: int) -> list[int]:
    """Values of a row in each piece of a bucket, at most ``most``, in blocks of the codec; they differ by one block."""
    num_blocks = ceil(num_gradients / num_rows / codec.block)
    num_pieces = ceil(num_blocks / max(1, most // codec.block))
    return [
        codec.block * (num_blocks * (i + 1) // num_pieces - num_blocks * i // num_pieces) for i in range(num_pieces)
    ]
