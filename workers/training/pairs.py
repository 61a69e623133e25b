"""Parts and passes of a single sample joined to others: batch normalisation cannot train on one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

Positions = NDArray[np.int64]


def has_batch_norm(model: nn.Module) -> bool:
    """Whether what a sample comes to in training hangs on the others of its pass."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def paired(sizes: Sequence[int]) -> list[int]:
    """Parts of a batch by rank without one of a single sample, where the batch has two.

    A part of 1 gets another of the largest part where that has 3 at least, else it is given to it.
    """
    left = list(sizes)
    for rank in [rank for rank, size in enumerate(sizes) if size == 1]:
        others = [other for other in range(len(left)) if other != rank and left[other] > 0]
        if left[rank] != 1 or not others:
            continue
        largest = max(others, key=lambda other: left[other])
        moved = 1 if left[largest] >= 3 else -1
        left[largest], left[rank] = left[largest] - moved, left[rank] + moved
    return left


def joined(cuts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Passes [begin, end) one after the other; a single sample that is left over gets another of those before it.

    Of two it gets both, so that a pass of three is the only one that may be larger than before.
    """
    if len(cuts) < 2 or cuts[-1][1] - cuts[-1][0] != 1:
        return list(cuts)
    *first, (begin, middle), (_, end) = cuts
    match middle - begin:
        case 1:
            return list(cuts)
        case 2:
            return [*first, (begin, end)]
    return [*first, (begin, middle - 1), (middle - 1, end)]


def joined_by_length(own: Sequence[Positions]) -> list[Positions]:
    """A rank's passes, from long samples to short ones; each single sample gets the one that follows, of two both.

    Likewise the last of all from those before it. No pass is larger than before but those of two and three samples.
    """
    left, passes = list(own), list[Positions]()
    for number, positions_M in enumerate(left):
        if len(positions_M) != 1 or len(left) == 1:
            passes += [positions_M] if len(positions_M) else []
        elif number + 1 < len(left):
            num_taken = 1 if len(left[number + 1]) >= 3 else len(left[number + 1])
            passes.append(np.concatenate([positions_M, left[number + 1][:num_taken]]))
            left[number + 1] = left[number + 1][num_taken:]
        else:
            num_kept = len(passes[-1]) - 1 if len(passes[-1]) >= 3 else 0
            passes[-1:] = [
                *([passes[-1][:num_kept]] if num_kept else []),
                np.concatenate([passes[-1][num_kept:], positions_M]),
            ]
    return passes


def shared_by_length(held: Sequence[Sequence[Positions]], lengths_N: Positions) -> list[list[Positions]]:
    """The passes of each rank, from long samples to short ones; the only sample of one goes to who has the most."""
    counts = [sum(map(len, own)) for own in held]
    left = [list(own) for own in held]
    for rank in [rank for rank, count in enumerate(counts) if count == 1]:
        largest = max(range(len(left)), key=lambda other: (other != rank, counts[other]))
        if counts[rank] == 1 and counts[largest] > 0 and largest != rank:
            left[largest] = sorted([*left[largest], *left[rank]], key=lambda at_M: -int(lengths_N[at_M[0]]))
            left[rank], counts[rank], counts[largest] = [], 0, counts[largest] + 1
    return left
