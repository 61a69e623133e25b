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
    """Passes [begin, end) one after the other; a single sample that is left over goes with those before it."""
    last = len(cuts) - 1
    if last < 1 or cuts[last][1] - cuts[last][0] != 1 or cuts[0][1] - cuts[0][0] == 1:
        return list(cuts)
    return [*cuts[: last - 1], (cuts[last - 1][0], cuts[last][1])]


def joined_by_length(own: Sequence[Positions]) -> list[Positions]:
    """A rank's passes, from long samples to short ones; each single sample goes with the next shorter ones."""
    passes: list[Positions] = []
    for positions_M in own:
        if passes and (len(passes[-1]) == 1 or (len(positions_M) == 1 and positions_M is own[-1])):
            passes[-1] = np.concatenate([passes[-1], positions_M])
        else:
            passes.append(positions_M)
    return passes


def shared_by_length(held: Sequence[Sequence[Positions]]) -> list[list[Positions]]:
    """The passes of each rank; the only sample of one goes to the rank that has the most."""
    counts = [sum(map(len, own)) for own in held]
    left = [list(own) for own in held]
    for rank in [rank for rank, count in enumerate(counts) if count == 1]:
        largest = max(range(len(left)), key=lambda other: (other != rank, counts[other]))
        if counts[rank] == 1 and counts[largest] > 0 and largest != rank:
            left[largest] += left[rank]
            left[rank], counts[rank], counts[largest] = [], 0, counts[largest] + 1
    return left
