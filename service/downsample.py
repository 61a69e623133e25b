"""Fewer points for a chart that looks the same: of each stretch the least and the greatest value of each series."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from service.records import Point
from service.stretches import Stretch, merged, stretch_of


def chosen_rounds(stretches: Sequence[Stretch], max_points: int) -> list[int]:
    """At most ``max_points`` rounds (two or more) for a chart of all series in the stretches, which are in order.

    Among them are the first and the last round that told anything. As many neighbours are joined until those
    fit in at which a series of a joined stretch is least or greatest, and those that tell a series first and
    last: peaks and dips survive. With more series than the points allow, what stays is thinned evenly.
    """
    told = [stretch for stretch in stretches if stretch]
    if not told:
        return []
    ends = {min(e.first for e in told[0].values()), max(e.last for e in told[-1].values())}
    whole = merged(told).values()
    series_ends = {at for e in whole for at in (e.first, e.last)}
    while True:
        kept = series_ends.union(*map(_extremes, told)) - ends
        if len(kept) <= max_points - len(ends) or len(told) == 1:
            break
        told = [merged(told[n : n + 2]) for n in range(0, len(told), 2)]
    return sorted(ends.union(_thinned(sorted(kept), max_points - len(ends))))


def downsample(points: Sequence[Point], keys: Collection[str], max_points: int) -> list[Point]:
    """At most ``max_points`` (two or more) of the points that tell one of the keys, by the same rule.

    All of the points, where they are no more.
    """
    if len(points) <= max_points:
        return list(points)
    wanted = frozenset(keys)
    told = [(p.round, {key: value for key, value in p.values.items() if key in wanted}) for p in points]
    # No stretch is shorter than two points: more could not all stay.
    length = -(-len(told) // max_points)
    stretches = [stretch_of(told[n : n + length]) for n in range(0, len(told), length)]
    rounds = set(chosen_rounds(stretches, max_points))
    return [point for point in points if point.round in rounds]


def _extremes(stretch: Stretch) -> set[int]:
    return {at for e in stretch.values() for at in (e.least_at, e.most_at)}


def _thinned(rounds: list[int], limit: int) -> list[int]:
    if len(rounds) <= limit:
        return rounds
    return [rounds[n * len(rounds) // limit] for n in range(limit)]
