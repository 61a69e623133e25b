"""Which ranks share a rack, from how fast the links between them were found to be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

CLEAR_RATIO = 3.0
"""Links inside racks are at least so many times as fast as those between."""
FAST_BYTES_PER_S = 250e6
"""Whatever is faster counts as this: two ranks of one machine are not the rack of two machines side by side."""
SLOW_BYTES_PER_S = 20e6
"""Where no link is faster than this and all are alike, none is one of a rack: each rank is a rack of its own."""


def racks_of(bytes_per_s: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """The number of each rank's rack, from 0 on, in the order of their first ranks.

    ``bytes_per_s[a][b]`` is what the link from rank a to rank b carries. Of the two ways the faster counts, as whatever
    disturbs a measurement makes it slower; for the same reason one fast link is enough to join a rack. The cut is the
    widest gap between links that leaves more than one rack, and one below ``CLEAR_RATIO`` is none.
    """
    size = len(bytes_per_s)
    links = {
        (a, b): min(max(bytes_per_s[a][b], bytes_per_s[b][a]), FAST_BYTES_PER_S)
        for a, b in combinations(range(size), 2)
    }
    speeds = sorted(set(links.values()))
    gaps = [(faster / slower, faster) for slower, faster in pairwise(speeds) if faster >= CLEAR_RATIO * slower]
    for _, least in sorted(gaps, reverse=True):
        racks = _joined(size, [pair for pair, speed in links.items() if speed >= least])
        if max(racks) > 0:
            return racks
    is_slow = bool(speeds) and speeds[-1] < SLOW_BYTES_PER_S
    return tuple(range(size)) if is_slow else (0,) * size


def _joined(size: int, pairs: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Numbers of the sets that these pairs join ranks to."""
    lowest = list(range(size))
    for a, b in pairs:
        low, high = sorted((lowest[a], lowest[b]))
        lowest = [low if first == high else first for first in lowest]
    numbers = {first: number for number, first in enumerate(sorted(set(lowest)))}
    return tuple(numbers[first] for first in lowest)
