"""The largest values of each row alone, as a number format: their codes, and their places in two bytes each.

What ``topk`` sends of a whole bucket to all ranks, this sends of a shard to its owner, who can add up what comes.
"""

from __future__ import annotations

from math import ceil
from typing import ClassVar

import torch

from workers.training.exchange.codecs import Codec
from workers.training.exchange.largest import ROOM, largest

MOST_NUMEL = 2**16
"""Values of a row, so that two bytes tell a place in it."""

_MIDDLE = MOST_NUMEL // 2


class Sparse:
    """About ``fraction`` of each row, by the ``codec``; there is room for half as many again."""

    name: ClassVar[str] = "topk"
    block: ClassVar[int] = 4
    has_error: ClassVar[bool] = True
    blurs_norm: ClassVar[bool] = True

    def __init__(self, fraction: float, codec: Codec) -> None:
        self._fraction, self._codec = fraction, codec

    def num_bytes(self, numel: int) -> int:
        return self._codec.num_bytes(self._num_codes(numel)) + 2 * self._room(numel)

    def encode(self, values_RN: torch.Tensor, out_RB: torch.Tensor, error_RN: torch.Tensor | None) -> None:
        num_rows, numel = values_RN.shape
        room, num_codes = self._room(numel), self._num_codes(numel)
        codes_RC, places_RK = self._parts(out_RB, numel)
        places_RK.fill_(-_MIDDLE)  # what is not taken up adds nothing to the first value
        picked_RN = torch.zeros(num_rows, num_codes, dtype=torch.float32, device=values_RN.device)
        chosen = [largest(values_N, ceil(self._fraction * numel), room) for values_N in values_RN]
        for row, places in enumerate(chosen):
            torch.index_select(values_RN[row], 0, places, out=picked_RN[row, : places.numel()])
            places_RK[row, : places.numel()] = places - _MIDDLE
        lost_RN = None if error_RN is None else torch.empty_like(picked_RN)
        self._codec.encode(picked_RN, codes_RC, lost_RN)
        if error_RN is not None and lost_RN is not None:
            error_RN.copy_(values_RN)
            for row, places in enumerate(chosen):
                error_RN[row].index_copy_(0, places, lost_RN[row, : places.numel()])

    def decode(self, payload_RB: torch.Tensor, out_RN: torch.Tensor) -> None:
        num_rows, numel = out_RN.shape
        codes_RC, places_RK = self._parts(payload_RB, numel)
        picked_RN = torch.empty(num_rows, self._num_codes(numel), dtype=torch.float32, device=out_RN.device)
        self._codec.decode(codes_RC, picked_RN)
        indexes_RK = places_RK.long().add_(_MIDDLE)
        out_RN.zero_().scatter_add_(1, indexes_RK, picked_RN[:, : self._room(numel)])

    def _room(self, numel: int) -> int:
        return min(numel, ceil(ROOM * self._fraction * numel))

    def _num_codes(self, numel: int) -> int:
        return ceil(self._room(numel) / self._codec.block) * self._codec.block

    def _parts(self, payload_RB: torch.Tensor, numel: int) -> tuple[torch.Tensor, torch.Tensor]:
        places_at = self._codec.num_bytes(self._num_codes(numel))
        return payload_RB[:, :places_at], payload_RB[:, places_at:].view(torch.int16)


def sparse_sums(fraction: float, num_summed: int, codec: Codec) -> Codec:
    """For sums of so many rows of which ``fraction`` was sent: all of them have places of their own at most."""
    sums = Sparse(min(1.0, fraction * num_summed), codec)
    return sums if sums.num_bytes(MOST_NUMEL) < codec.num_bytes(MOST_NUMEL) else codec
