"""A batch of samples of unequal lengths, shared by ranks and packed end to end into micro-batches without padding.

Pure: lengths and weights in, positions out, the same on every rank. Samples go to the ranks from the longest to the
shortest, each to whoever is done with it first (Graham 1969, SIAM J. Appl. Math. 17, "Bounds on multiprocessing timing
anomalies"), and on a rank each into the fullest micro-batch that has room (best fit decreasing: Johnson et al. 1974,
SIAM J. Comput. 3, "Worst-case performance bounds for simple one-dimensional packing algorithms": at most 11/9 of the
fewest, and 4 more).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.training.bounds import Bounds


def deal_packed(
    lengths_N: NDArray[np.int64], weights: Sequence[float], bounds: Bounds
) -> list[list[NDArray[np.int64]]]:
    """The micro-batches of each rank: positions in ``lengths_N``, each of them once, from the longest to the shortest.

    ``lengths_N`` are tokens, above 0 and none above ``bounds.max_tokens``; ``weights`` are by rank, one of them above
    0. The tokens of ranks come in proportion to the weights as far as samples can be divided; a weight of 0 gets
    nothing, and so may a rank of a batch that has fewer samples than ranks.
    """
    lengths: list[int] = lengths_N.tolist()
    active = [rank for rank, weight in enumerate(weights) if weight > 0]
    loads = [0] * len(weights)
    held: list[list[int]] = [[] for _ in weights]
    for position in np.argsort(-lengths_N, kind="stable").tolist():
        length = lengths[position]
        rank = min(active, key=lambda r: (loads[r] + length) / weights[r])
        held[rank].append(position)
        loads[rank] += length
    return [_packed(own, lengths, bounds) for own in held]


def _packed(own: Sequence[int], lengths: Sequence[int], bounds: Bounds) -> list[NDArray[np.int64]]:
    """One rank's micro-batches; ``own`` comes from long to short, and so does each of them."""
    capacity = sum(lengths[position] for position in own) if bounds.max_tokens is None else bounds.max_tokens
    passes: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (tokens, number) of passes that may take another sample, the fullest first
    for position in own:
        at = bisect_left(rooms, (lengths[position], 0))
        room, number = rooms.pop(at) if at < len(rooms) else (capacity, len(passes))
        if number == len(passes):
            passes.append([])
        passes[number].append(position)
        if bounds.max_samples is None or len(passes[number]) < bounds.max_samples:
            insort(rooms, (room - lengths[position], number))
    return [np.array(each, dtype=np.int64) for each in passes]
