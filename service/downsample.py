"""Fewer points for a chart that looks the same: of each stretch the least and the greatest value of each series."""

from __future__ import annotations

from collections.abc import Sequence

from service.records import Point


def downsample(points: Sequence[Point], keys: Sequence[str], max_points: int) -> list[Point]:
    """At most ``max_points`` of the points, in order, the first and the last among them.

    The points are cut into stretches of equal length, and of each stretch those stay at which one of
    the ``keys`` is least or greatest, so peaks and dips survive. With more keys than the points
    allow, stretches get few and what stays is thinned evenly.
    """
    if len(points) <= max_points:
        return list(points)
    if max_points < 2:
        return [points[-1]][:max_points]
    inner = range(1, len(points) - 1)
    num_stretches = max(1, (max_points - 2) // (2 * max(1, len(keys))))
    kept: set[int] = set()
    # Series often peak together: what one pass leaves unused is spent on finer stretches by the next.
    while num_stretches <= max_points:
        finer = _extremes(points, keys, inner, num_stretches)
        if kept and len(finer) > max_points - 2:
            break
        kept = finer
        if len(kept) > (max_points - 2) // 2:
            break
        num_stretches *= 2
    chosen = _thinned(sorted(kept), max_points - 2)
    return [points[0], *(points[i] for i in chosen), points[-1]]


def _extremes(points: Sequence[Point], keys: Sequence[str], inner: range, num_stretches: int) -> set[int]:
    kept: set[int] = set()
    for n in range(num_stretches):
        stretch = inner[n * len(inner) // num_stretches : (n + 1) * len(inner) // num_stretches]
        for key in keys:
            told = [i for i in stretch if key in points[i].values]
            if told:
                kept.add(min(told, key=lambda i: points[i].values[key]))
                kept.add(max(told, key=lambda i: points[i].values[key]))
    return kept


def _thinned(indices: list[int], limit: int) -> list[int]:
    if len(indices) <= limit:
        return indices
    return [indices[n * len(indices) // limit] for n in range(limit)]
