"""Which ranks share a rack: by how fast the links between them were found to be, else by their nodes' labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, pairwise
from math import log
from statistics import fmean, median

LABEL = "concertina.io/rack"
"""The label of a Ray node that names its rack."""

CLEAR_RATIO = 3.0
"""Links inside racks are at least so many times as fast as those between."""
FAST_BYTES_PER_S = 250e6
"""Whatever is faster counts as this: two ranks of one machine are not the rack of two machines side by side."""
SLOW_BYTES_PER_S = 20e6
"""Where no link is faster than this and all are alike, none is one of a rack: each rank is a rack of its own."""

MOST_NAMED = 8
MOST_DISPUTES = 4


class FoundBy(StrEnum):
    """What racks are known by; NOTHING: all count as one."""

    LINKS = "links"
    LABELS = "labels"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispute:
    """Two ranks that links put into one rack and labels into two, or the other way round: ``is_one_label``."""

    ranks: tuple[int, int]
    is_one_label: bool
    bytes_per_s: float
    latency_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """``racks`` has the number of every rank's rack, from 0 on, in the order of their first ranks.

    Speeds are the median link's in bytes a second, inside racks and between them, latencies in seconds one way; None
    where there is no such link, or where that could not be measured. ``labels`` are the ranks' own, empty where not
    all have one; of ``disputes`` there is one for two labels in two racks, and ``MOST_DISPUTES`` in all.
    """

    racks: tuple[int, ...]
    found_by: FoundBy = FoundBy.LINKS
    inside_bytes_per_s: float | None = None
    across_bytes_per_s: float | None = None
    inside_latency_s: float | None = None
    across_latency_s: float | None = None
    labels: tuple[str, ...] = ()
    disputes: tuple[Dispute, ...] = ()

    @property
    def has_levels(self) -> bool:
        """Whether there is more than one rack, and more than one rank in one of them."""
        return 0 < max(self.racks) < len(self.racks) - 1

    @property
    def ring_latency_s(self) -> float:
        """What a ring's all-reduce takes whatever its bytes: 2 (p - 1) latencies (Thakur et al. 2005, section 4.4)."""
        known = [latency_s for latency_s in (self.inside_latency_s, self.across_latency_s) if latency_s is not None]
        return 2 * (len(self.racks) - 1) * max(known, default=0.0)

    @property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each rack."""
        return tuple(
            tuple(rank for rank, rack in enumerate(self.racks) if rack == number)
            for number in range(max(self.racks) + 1)
        )

    def __str__(self) -> str:
        told = [f"{self.inside_bytes_per_s * 8 / 1e6:.0f} Mbit a second inside"] if self.inside_bytes_per_s else []
        told += [f"{self.across_bytes_per_s * 8 / 1e6:.0f} between racks"] if self.across_bytes_per_s else []
        return ", ".join((self._racks_in_words(), *told))

    def _racks_in_words(self) -> str:
        if len(self.racks) <= MOST_NAMED:
            return "racks of ranks " + " | ".join(", ".join(map(str, ranks)) for ranks in self.members)
        sizes = sorted(Counter(map(len, self.members)).items())
        return " and ".join(f"{num} rack{'s' if num > 1 else ''} of {size}" for size, num in sizes)


def topology_of(
    bytes_per_s: Sequence[Sequence[float]],
    latencies_s: Sequence[Sequence[float]] | None = None,
    labels: tuple[str, ...] = (),
) -> Topology:
    """The racks that ``racks_of`` finds, how links are inside them and between, and what labels tell otherwise."""
    racks = racks_of(bytes_per_s)
    pairs = list(combinations(range(len(racks)), 2))
    inside = [pair for pair in pairs if racks[pair[0]] == racks[pair[1]]]
    across = [pair for pair in pairs if racks[pair[0]] != racks[pair[1]]]
    speeds = {(a, b): speed for a, b in pairs if (speed := max(bytes_per_s[a][b], bytes_per_s[b][a])) > 0.0}
    delays = {(a, b): latencies_s[a][b] for a, b in pairs} if latencies_s else {}
    return Topology(
        racks=racks,
        inside_bytes_per_s=_usual(speeds, inside),
        across_bytes_per_s=_usual(speeds, across),
        inside_latency_s=_usual(delays, inside),
        across_latency_s=_usual(delays, across),
        labels=labels,
        disputes=tuple(
            Dispute(
                ranks=pair,
                is_one_label=labels[pair[0]] == labels[pair[1]],
                bytes_per_s=speeds[pair],
                latency_s=delays.get(pair),
            )
            for pair in _disputed(racks, labels, speeds)
        ),
    )


def unmeasured(size: int, labels: tuple[str, ...] = ()) -> Topology:
    """The racks that labels tell where links could not be measured; all are one without labels."""
    if not labels:
        return Topology(racks=(0,) * size, found_by=FoundBy.NOTHING)
    names = list(dict.fromkeys(labels))
    return Topology(racks=tuple(map(names.index, labels)), found_by=FoundBy.LABELS, labels=labels)


def complete(labels: Sequence[str]) -> tuple[str, ...]:
    """These labels by rank, none where a rank has none: who is where must be known of all."""
    return tuple(labels) if all(labels) else ()


def _usual(values: Mapping[tuple[int, int], float], pairs: Sequence[tuple[int, int]]) -> float | None:
    return median(found) if (found := [values[pair] for pair in pairs if pair in values]) else None


def _disputed(
    racks: Sequence[int], labels: Sequence[str], speeds: Mapping[tuple[int, int], float]
) -> list[tuple[int, int]]:
    """Of each two labels in two racks the first pair that was measured; links all alike say nothing against labels."""
    found: dict[frozenset[tuple[str, int]], tuple[int, int]] = {}
    if labels and 0 < max(racks) < len(racks) - 1:
        for a, b in speeds:
            if (labels[a] == labels[b]) != (racks[a] == racks[b]):
                found.setdefault(frozenset(((labels[a], racks[a]), (labels[b], racks[b]))), (a, b))
    return list(found.values())[:MOST_DISPUTES]


def racks_of(bytes_per_s: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """The number of each rank's rack, from 0 on, in the order of their first ranks.

    ``bytes_per_s[a][b]`` is what the link from rank a to rank b carries. Of the two ways the faster counts, as whatever
    disturbs a measurement makes it slower; for the same reason one fast link is enough to join a rack. 0 where nothing
    was measured, which joins and parts nobody. The cut is the widest gap between links that leaves more than one rack,
    and one below ``CLEAR_RATIO`` is none; where noise fills all gaps the usual links may still be so far apart.
    """
    size = len(bytes_per_s)
    links = {
        (a, b): min(speed, FAST_BYTES_PER_S)
        for a, b in combinations(range(size), 2)
        if (speed := max(bytes_per_s[a][b], bytes_per_s[b][a])) > 0.0
    }
    speeds = sorted(set(links.values()))
    gaps = [(faster / slower, faster) for slower, faster in pairwise(speeds) if faster >= CLEAR_RATIO * slower]
    for _, least in sorted(gaps, reverse=True):
        racks = _joined(size, [pair for pair, speed in links.items() if speed >= least])
        if max(racks) > 0:
            return racks
    if (parted := _parted_best(size, links)) is not None:
        return parted
    is_slow = bool(speeds) and speeds[-1] < SLOW_BYTES_PER_S
    return tuple(range(size)) if is_slow else (0,) * size


def _parted_best(size: int, links: Mapping[tuple[int, int], float]) -> tuple[int, ...] | None:
    """Of all racks that links above some speed join, those that part links best; None where none do so clearly.

    By the variance between links inside and across, of logarithms (Otsu 1979, IEEE Trans. SMC 9, 62); clearly is where
    the median link inside is ``CLEAR_RATIO`` times as fast as that across.
    """
    best, parted = 0.0, None
    logs = {pair: log(speed) for pair, speed in links.items()}
    for least in _joining(size, links):
        racks = _joined(size, [pair for pair, speed in links.items() if speed >= least])
        inside = [value for (a, b), value in logs.items() if racks[a] == racks[b]]
        across = [value for (a, b), value in logs.items() if racks[a] != racks[b]]
        if across and median(inside) - median(across) >= log(CLEAR_RATIO):
            variance = len(inside) * len(across) * (fmean(inside) - fmean(across)) ** 2
            best, parted = max((best, parted), (variance, racks), key=lambda each: each[0])
    return parted


def _joining(size: int, links: Mapping[tuple[int, int], float]) -> list[float]:
    """The speeds of links that join two sets which no faster ones do, each once: no others change the racks."""
    sets, found = list(range(size)), dict[float, None]()
    for (a, b), speed in sorted(links.items(), key=lambda link: -link[1]):
        if sets[a] != sets[b]:
            sets = [sets[a] if number == sets[b] else number for number in sets]
            found[speed] = None
    return [*found]


def _joined(size: int, pairs: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Numbers of the sets that these pairs join ranks to."""
    lowest = list(range(size))
    for a, b in pairs:
        low, high = sorted((lowest[a], lowest[b]))
        if low != high:
            lowest = [low if first == high else first for first in lowest]
    numbers = {first: number for number, first in enumerate(sorted(set(lowest)))}
    return tuple(numbers[first] for first in lowest)
