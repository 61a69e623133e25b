"""Gradients in fewer bytes: every rank sums one chunk of what all ranks encoded, and gives the others the sum.

A sum of codes is no code, so an all-reduce cannot carry them. What it does in two halves is done here with a codec
between: all-to-all of chunks, decode and add in fp32, encode the sum, all-gather (as qgZ of ZeRO++, arXiv 2306.10209).
A rank sends 2 (n - 1) / n times a bucket's bytes, as in an all-reduce, whatever the number n of ranks. Two ranks send
each other all they have: as many bytes, one hop and one rounding less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import torch

from workers.training.exchange.codecs import Codec
from workers.training.exchange.residual import Residual
from workers.training.exchange.schemes import InFlight, Summed
from workers.training.state import StepState
from workers.training.world import Transfer, World

_ALIGNED_BYTES = 8


@dataclass(slots=True, kw_only=True)
class _Parcel:
    """Memory of one bucket's way: a row of ``values_RN`` becomes one of ``sent_RB``, the tail's bytes behind its codes.

    ``received_WB`` has a row of every rank. ``error_RN`` is None where nothing is kept of what is left out.
    """

    flat: torch.Tensor
    num_gradients: int
    num_code_bytes: int
    tail_at: int
    values_RN: torch.Tensor
    sent_RB: torch.Tensor
    received_WB: torch.Tensor
    decoded_WN: torch.Tensor
    error_RN: torch.Tensor | None = None

    def load(self) -> None:
        """Take the gradients, with zeros to the end of the rows, and the tail as it is."""
        place = self.values_RN.view(-1)
        place[: self.num_gradients] = self.flat[: self.num_gradients]
        place[self.num_gradients :] = 0.0
        tail = self.flat[self.num_gradients :]
        if tail.numel() > 0:
            self.sent_RB[:, self.tail_at :][:, : tail.nbytes] = tail.view(torch.uint8)

    def sum_tail(self) -> None:
        """Add up all ranks' tails, in the order of the ranks."""
        tail = self.flat[self.num_gradients :]
        if tail.numel() > 0:
            rows_WB = self.received_WB[:, self.tail_at :][:, : tail.nbytes]
            torch.sum(rows_WB.view(tail.dtype), dim=0, out=tail)

    def encode(self, codec: Codec) -> None:
        codec.encode(self.values_RN, self.sent_RB[:, : self.num_code_bytes], self.error_RN)

    def decode(self, codec: Codec) -> None:
        codec.decode(self.received_WB[:, : self.num_code_bytes], self.decoded_WN)

    def store(self, values: torch.Tensor) -> None:
        """Let these be the gradients."""
        self.flat[: self.num_gradients] = values.view(-1)[: self.num_gradients]


class _Exchanged:
    """Both ranks of two have sent all; each adds the same bytes in the same order."""

    def __init__(self, codec: Codec, parcel: _Parcel, transfer: Transfer) -> None:
        self._codec, self._parcel, self._transfer = codec, parcel, transfer

    def forward(self) -> bool:
        return False

    def wait(self) -> None:
        self._transfer.wait()
        parcel = self._parcel
        parcel.decode(self._codec)
        parcel.sum_tail()
        parcel.store(parcel.decoded_WN[0].add_(parcel.decoded_WN[1]))


class _Scattered:
    """Everybody's share of this rank's chunk is under way, then the chunks' sums."""

    def __init__(self, codec: Codec, parcel: _Parcel, world: World, transfer: Transfer) -> None:
        self._codec, self._parcel, self._world, self._transfer = codec, parcel, world, transfer
        self._is_back = False

    def forward(self) -> bool:
        if self._is_back:
            return False
        self._transfer.wait()
        codec, parcel, rank = self._codec, self._parcel, self._world.rank
        parcel.decode(codec)
        parcel.sum_tail()
        summed_1N = torch.sum(parcel.decoded_WN, dim=0, keepdim=True)
        payload_1C = parcel.sent_RB.view(-1)[: parcel.num_code_bytes].view(1, -1)
        error_1N = None if parcel.error_RN is None else torch.empty_like(summed_1N)
        codec.encode(summed_1N, payload_1C, error_1N)
        if parcel.error_RN is not None and error_1N is not None:
            # What the sum lost, its owner owes to all.
            parcel.error_RN[rank].add_(error_1N[0])
        place_WC = parcel.received_WB.view(-1)[: self._world.size * parcel.num_code_bytes].view(self._world.size, -1)
        self._transfer, self._is_back = self._world.all_gather(place_WC, payload_1C), True
        return False

    def wait(self) -> None:
        self.forward()
        self._transfer.wait()
        parcel = self._parcel
        place_WC = parcel.received_WB.view(-1)[: self._world.size * parcel.num_code_bytes].view(self._world.size, -1)
        self._codec.decode(place_WC, parcel.decoded_WN)
        parcel.store(parcel.decoded_WN)


class Compressed:
    """A ``Scheme``: gradients by ``codec``, with error feedback where that has an error worth keeping."""

    staged: Sequence[StepState] = ()

    def __init__(self, codec: Codec, residual: Residual) -> None:
        self.name, self.blurs_norm = codec.name, codec.blurs_norm
        self._codec, self._residual = codec, residual
        self._parcels: dict[tuple[int, int], _Parcel] = {}

    def prepare(self, shapes: Sequence[Sequence[torch.Size]]) -> None:
        return

    def start(self, number: int, flat: torch.Tensor, num_gradients: int, world: World) -> InFlight | None:
        gradients = flat[:num_gradients]
        if world.size == 1:
            self._residual.add_to(number, gradients)
            self._residual.stage_nothing(number)
            return None
        if num_gradients == 0:
            transfer = world.all_reduce(flat)
            return None if transfer is None else Summed(transfer)
        parcel = self._parcel(number, flat, num_gradients, world.size)
        parcel.load()
        self._residual.add_to(number, parcel.values_RN.view(-1)[:num_gradients])
        if self._codec.has_error:
            parcel.error_RN = self._residual.place(number, parcel.values_RN)
        else:
            self._residual.stage_nothing(number)
        parcel.encode(self._codec)
        if world.size == 2:
            return _Exchanged(self._codec, parcel, world.all_gather(parcel.received_WB, parcel.sent_RB))
        return _Scattered(self._codec, parcel, world, world.all_to_all(parcel.received_WB, parcel.sent_RB))

    def wire_bytes(self, number: int, flat: torch.Tensor, num_gradients: int, num_ranks: int) -> float:
        if num_gradients == 0 or num_ranks == 1:
            return 2.0 * flat.nbytes * (num_ranks - 1) / num_ranks
        num_rows, row_numel = _rows(num_gradients, num_ranks, self._codec)
        num_code_bytes, _, row_bytes = self._row(row_numel, flat[num_gradients:])
        back = 0 if num_rows == 1 else num_code_bytes
        return float((num_ranks - 1) * (row_bytes + back))

    def _parcel(self, number: int, flat: torch.Tensor, num_gradients: int, num_ranks: int) -> _Parcel:
        key = (number, num_ranks)
        found = self._parcels.get(key)
        if found is not None and found.flat is flat:
            return found
        num_rows, row_numel = _rows(num_gradients, num_ranks, self._codec)
        num_code_bytes, tail_at, row_bytes = self._row(row_numel, flat[num_gradients:])
        device = flat.device
        parcel = _Parcel(
            flat=flat,
            num_gradients=num_gradients,
            num_code_bytes=num_code_bytes,
            tail_at=tail_at,
            values_RN=torch.empty(num_rows, row_numel, device=device),
            sent_RB=torch.zeros(num_rows, row_bytes, dtype=torch.uint8, device=device),
            received_WB=torch.empty(num_ranks, row_bytes, dtype=torch.uint8, device=device),
            decoded_WN=torch.empty(num_ranks, row_numel, device=device),
        )
        self._parcels = {other: old for other, old in self._parcels.items() if other[1] == num_ranks} | {key: parcel}
        return parcel

    def _row(self, row_numel: int, tail: torch.Tensor) -> tuple[int, int, int]:
        """Bytes of a row's codes, where its tail begins, and bytes of it all."""
        num_code_bytes = self._codec.num_bytes(row_numel)
        tail_at = _aligned(num_code_bytes)
        return num_code_bytes, tail_at, _aligned(tail_at + tail.nbytes)


def _rows(num_gradients: int, num_ranks: int, codec: Codec) -> tuple[int, int]:
    """How many rows this rank sends, and their length: one for each rank's chunk, or all to the only other rank."""
    num_rows = 1 if num_ranks == 2 else num_ranks
    return num_rows, ceil(num_gradients / num_rows / codec.block) * codec.block


def _aligned(num_bytes: int) -> int:
    return ceil(num_bytes / _ALIGNED_BYTES) * _ALIGNED_BYTES
