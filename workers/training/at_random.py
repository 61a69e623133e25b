"""A rank's part of a batch of samples of unequal lengths in the batch's own order, which is a random one.

Micro-batches that are cut by length differ by their lengths and not by chance alone: where lengths tell of gradients,
the gradient noise between them comes out too large. So in some rounds parts are cut as if there were no lengths, but
that each micro-batch keeps within its bounds. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from workers.training.bounds import Bounds


def at_random(
    lengths_N: NDArray[np.int64], begin: int, end: int, dealt: Sequence[Sequence[NDArray[np.int64]]], bounds: Bounds
) -> list[NDArray[np.int64]]:
    """Micro-batches of the samples [begin, end), which is the part of one rank: positions, in order.

    Each but a rank's last has as many samples, on all ranks, and so few that any of the batch would fit: if sizes hung
    on which samples go together, the noise would be another. ``lengths_N`` are tokens, above 0 and none above
    ``bounds.max_tokens``; ``dealt`` are the micro-batches by length of each rank, and none takes up more than a rank's
    largest: nobody knows what memory is left for more. A rank that has the whole batch cuts it in two at least.
    """
    num_samples = end - begin
    if num_samples == 0:
        return []
    size = min(_most(lengths_N, dealt, bounds), max(1, -(-num_samples // 2)) if num_samples == len(lengths_N) else end)
    return [np.arange(at, min(at + size, end)) for at in range(begin, end, size)]


def _most(lengths_N: NDArray[np.int64], dealt: Sequence[Sequence[NDArray[np.int64]]], bounds: Bounds) -> int:
    """Of any samples of the batch so many fit."""
    largest = [max(bounds.taken(lengths_N[own_M]) for own_M in own) for own in dealt if own]
    within = replace(bounds, max_tokens=max(min(largest), int(lengths_N.max())))
    return within.fitting(np.sort(lengths_N)[::-1])
