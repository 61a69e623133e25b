"""How gradients in buckets leave a backward pass, and what the link still carries when that is over. Pure; seconds.

A pipeline of two stages (as in MG-WFBP, arXiv 1811.11141): a bucket leaves when all of it is there and the link is
free. Backward is taken to make gradients at an even pace.
"""

from __future__ import annotations

from collections.abc import Sequence

BUCKET_S = 0.002
"""What one bucket more takes of the cores that compute: a collective of its own."""


def left_s(shares: Sequence[float], carried_s: float, backward_s: float) -> float:
    """What the link takes after the backward pass, of ``carried_s`` for all buckets; ``shares`` are theirs in order."""
    is_there_s = ends_s = 0.0
    for share in shares:
        is_there_s += share * backward_s
        ends_s = max(ends_s, is_there_s) + share * carried_s
    return ends_s - backward_s


def exposed_s(
    known_s: float, before: Sequence[float], after: Sequence[float], carried_s: float, backward_s: float
) -> float:
    """What is waited for in buckets ``after``, where it is ``known_s`` in buckets ``before``.

    What the model does not know of the one it does not know of the other either. The last bucket hides behind nothing,
    and what fewer buckets give back is not counted on.
    """
    gained_s = left_s(before, carried_s, backward_s) - left_s(after, carried_s, backward_s)
    return max(known_s - gained_s, after[-1] * carried_s) + max(0, len(after) - len(before)) * BUCKET_S
