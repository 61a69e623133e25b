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
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from workers.training.bounds import Bounds


def shares(lengths_N: NDArray[np.int64], weights: Sequence[float]) -> list[NDArray[np.int64]]:
    """What each rank gets: positions in ``lengths_N``, each of them once, from the longest sample to the shortest.

    ``lengths_N`` are tokens, above 0; ``weights`` are by rank, one of them above 0. The tokens of ranks come in
    proportion to the weights as far as samples can be divided; a weight of 0 gets nothing, and so may a rank of a batch
    that has fewer samples than ranks.
    """
    held: list[list[int]] = [[] for _ in weights]
    # Of ranks with one weight the first to be done is always the one with the fewest tokens.
    by_weight: dict[float, list[tuple[int, int]]] = {weight: [] for weight in weights if weight > 0}
    for rank, weight in enumerate(weights):
        if weight > 0:
            by_weight[weight].append((0, rank))
    order_N = np.argsort(-lengths_N, kind="stable")
    for position, length in zip(order_N.tolist(), lengths_N[order_N].tolist(), strict=True):
        weight = min(by_weight, key=lambda w: ((by_weight[w][0][0] + length) / w, by_weight[w][0][1]))
        tokens, rank = heappop(by_weight[weight])
        held[rank].append(position)
        heappush(by_weight[weight], (tokens + length, rank))
    return [np.array(own, dtype=np.int64) for own in held]


def packed(own_M: NDArray[np.int64], lengths_N: NDArray[np.int64], bounds: Bounds) -> list[NDArray[np.int64]]:
    """Micro-batches of the positions ``own_M``, which come from long to short, as they do in each of them.

    No length is above ``bounds.max_tokens``.
    """
    lengths_M: list[int] = lengths_N[own_M].tolist()
    capacity = sum(lengths_M) if bounds.max_tokens is None else bounds.max_tokens
    passes: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (tokens, number) of passes that may take another sample, the fullest first
    for position, length in zip(own_M.tolist(), lengths_M, strict=True):
        at = bisect_left(rooms, (length, 0))
        room, number = rooms.pop(at) if at < len(rooms) else (capacity, len(passes))
        if number == len(passes):
            passes.append([])
        passes[number].append(position)
        if bounds.max_samples is None or len(passes[number]) < bounds.max_samples:
            insort(rooms, (room - length, number))
    return [np.array(each, dtype=np.int64) for each in passes]
