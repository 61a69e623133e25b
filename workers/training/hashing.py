"""A number for the bits of tensors: equal bits give equal numbers, whatever they mean as values.

The 32-bit words, in the order of the tensors, each times an odd weight drawn for its place, are added modulo 2**64.
An odd weight takes nothing away, so one word that differs always shows. Several that differ show too but by an accident
of the weights: one in 2**32 at worst, where nothing but signs differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import torch
import torch.nn.functional as F

PIECE_BYTES = 2**22
_WORD_BYTES = 4
_WEIGHTS_SEED = 0


def hash_of(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """The hash of tensors of any format and shape, all on ``device``: an int64 there, of no dimension.

    Nothing waits for the device. It takes about five times ``PIECE_BYTES`` of memory at most. NaNs count by their bits.
    """
    sums = [_weighted_sum(_words(piece)) for piece in _pieces(tensors)]
    return _weighted_sum(torch.stack(sums)) if sums else torch.zeros((), dtype=torch.int64, device=device)


def _pieces(tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """All bytes in their order, in copies of at most ``PIECE_BYTES``: many small tensors take few operations."""
    parts: list[torch.Tensor] = []
    room = PIECE_BYTES
    for tensor in tensors:
        rest = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        while rest.numel() > 0:
            part, rest = rest[:room], rest[room:]
            parts.append(part)
            room -= part.numel()
            if room == 0:
                yield torch.cat(parts)
                parts, room = [], PIECE_BYTES
    if parts:
        yield torch.cat(parts)


def _words(piece: torch.Tensor) -> torch.Tensor:
    if short := piece.numel() % _WORD_BYTES:
        piece = F.pad(piece, (0, _WORD_BYTES - short))
    return piece.view(torch.int32).to(torch.int64)


def _weighted_sum(words: torch.Tensor) -> torch.Tensor:
    return words.mul_(_weights(words.device)[: words.numel()]).sum()


@cache
def _weights(device: torch.device) -> torch.Tensor:
    """The same on all ranks, as torch's generator on the CPU draws the same everywhere."""
    draw = torch.Generator().manual_seed(_WEIGHTS_SEED)
    drawn = torch.randint(-(2**63), 2**63 - 1, (PIECE_BYTES // _WORD_BYTES,), generator=draw)
    return drawn.bitwise_or_(1).to(device)
