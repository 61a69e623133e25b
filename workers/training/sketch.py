"""A few numbers of tensors that tell how far they are from another rank's, which need not be sent for that.

Each value is added to one of ``WIDTH`` sums, times a sign drawn for its place. The squares of the difference of two
such sketches add up to the squared distance of what they are of: on average, and to a fiftieth or so (Alon, Matias and
Szegedy, 1996, with one sum for each part as in Charikar, Chen and Farach-Colton, 2002: the deviation of the square is
sqrt(2 / WIDTH) of it, where what differs is spread over the sums).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

import numpy as np
import torch
import torch.nn.functional as F

WIDTH = 4093
"""A prime: values of one column of a matrix, whose width has small factors, do not all come to the same few sums."""

PIECE = 256 * WIDTH
_SIGNS_SEED = 0


def sketch_of(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """``WIDTH`` sums in fp64 of all values of these tensors, and as many of which are no finite numbers: (2, WIDTH).

    Both on ``device``, as the tensors are; what is not finite counts as 0 in the first, and as 1 in the second. It
    takes about 40 MiB at a time. Whoever has tensors of the same shapes draws the same signs.
    """
    sums_2W = torch.zeros(2, WIDTH, dtype=torch.float64, device=device)
    chance = np.random.PCG64(_SIGNS_SEED)
    for values in _pieces(tensors):
        num_rows = ceil(values.numel() / WIDTH)
        values_RW = F.pad(values, (0, num_rows * WIDTH - values.numel())).view(num_rows, WIDTH)
        are_none_RW = values_RW.isfinite().logical_not_().double()
        both_2RW = torch.stack([torch.nan_to_num(values_RW, nan=0.0, posinf=0.0, neginf=0.0), are_none_RW])
        sums_2W += both_2RW.mul_(_signs(chance, num_rows).to(device)).sum(1)
    return sums_2W


def _pieces(tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """All values in their order, in fp64, ``PIECE`` at a time: many small tensors take few operations."""
    parts: list[torch.Tensor] = []
    room = PIECE
    for tensor in tensors:
        rest = _flat(tensor)
        while rest.numel() > 0:
            part, rest = rest[:room], rest[room:]
            parts.append(part.double())
            room -= part.numel()
            if room == 0:
                yield torch.cat(parts)
                parts, room = [], PIECE
    if parts:
        yield torch.cat(parts)


def apart(sketches_N2W: torch.Tensor) -> torch.Tensor:
    """How far each of N is from each by its sketch, as a part of the largest norm among them: (N, N).

    Infinitely far where not the same values are finite.
    """
    values_NW, none_NW = sketches_N2W.unbind(1)
    norm = max(float(values_NW.norm(dim=1).max()), torch.finfo(torch.float64).tiny)
    between_NN = torch.cdist(values_NW, values_NW, compute_mode="donot_use_mm_for_euclid_dist") / norm
    are_unlike_NN = torch.cdist(none_NW, none_NW, compute_mode="donot_use_mm_for_euclid_dist") > 0.0
    return between_NN.masked_fill(are_unlike_NN, torch.inf)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)


def _signs(chance: np.random.PCG64, num_rows: int) -> torch.Tensor:
    """Those of the next places, one each, by a generator whose raw numbers are the same in every version.

    By one for a whole row, what rows have in common (a shift of all values, say) would be told as anything from nothing
    to many times as much.
    """
    words = chance.random_raw(ceil(num_rows * WIDTH / 64)).astype("<u8")
    bits = np.unpackbits(words.view(np.uint8))[: num_rows * WIDTH]
    return torch.from_numpy(1 - 2 * bits.astype(np.int8)).view(num_rows, WIDTH)
