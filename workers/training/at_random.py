"""A rank's part of a batch of samples of unequal lengths in the batch's own order, which is a random one.

Micro-batches that are cut by length differ by their lengths and not by chance alone: where lengths tell of gradients,
the gradient noise between them comes out too large. So in some rounds parts are cut as if there were no lengths, but
that each micro-batch keeps within its bounds. Pure.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.training.bounds import Bounds


def at_random(lengths_N: NDArray[np.int64], begin: int, end: int, bounds: Bounds) -> list[NDArray[np.int64]]:
    """Micro-batches of the samples [begin, end) of a batch, which are one rank's part: positions, in order.

    Each but the last has as many samples, and so few that any of the batch would be within ``bounds``, which must not
    hang on the part: if sizes did on which samples go together, the noise would be another. ``lengths_N`` are tokens of
    the whole batch, above 0. A rank that has all of it cuts it in two at least.
    """
    num_samples = end - begin
    if num_samples == 0:
        return []
    most = bounds.fitting(np.sort(lengths_N)[::-1])
    size = min(most, -(-num_samples // 2)) if num_samples == len(lengths_N) else most
    return [np.arange(at, min(at + size, end)) for at in range(begin, end, size)]
