"""Which links to measure: few enough that it ends soon, and enough that every two racks have one measured. Pure.

Pairs are of ranks, the lower first, in rounds in which nobody is twice. Of several ranks on one machine one meets other
machines, as they share its link; two of them meet each other. A table of speeds has 0 where nothing was measured.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from workers.racks import racks_of

Pair: TypeAlias = tuple[int, int]
Speeds: TypeAlias = Mapping[Pair, float]

MOST_PAIRS = 32
"""At a time: half of them may share one link, which at 50 Mbit takes 0.2 s for 64 KiB of each."""


def first_rounds(machines: Sequence[int]) -> list[list[Pair]]:
    """What to measure first, by the number of every rank's machine: two ranks of each, and machines among themselves.

    Of many machines a part of all pairs, in which each reaches each over others.
    """
    ranks = _firsts(machines)
    beside = [(a, machines.index(machines[a], a + 1)) for a in ranks if machines[a] in machines[a + 1 :]]
    rounds = rounds_of_pairs(len(ranks))
    num_rounds = max(2, MOST_PAIRS // max(1, len(ranks) // 2))  # two that follow each other lead from each to each
    if len(rounds) > num_rounds:
        random.Random(len(ranks)).shuffle(ranks)  # alike everywhere; neighbours by number may be in one rack
    among = [[_ordered(ranks[a], ranks[b]) for a, b in pairs] for pairs in rounds[:num_rounds]]
    return [*([beside] if beside else []), *among]


def next_rounds(speeds: Speeds, machines: Sequence[int]) -> list[list[Pair]]:
    """What to measure besides: a link of each two racks that have none measured; none where all have, or all are alike.

    What few links took for two racks may be one.
    """
    ranks = _firsts(machines)
    racks = dict(zip(ranks, racks_of([[_between(speeds, a, b) for b in ranks] for a in ranks]), strict=True))
    if max(racks.values()) == len(ranks) - 1:
        return []
    known = {_ordered(racks[a], racks[b]) for a, b in speeds if a in racks and b in racks}
    lowest = [next(rank for rank in ranks if racks[rank] == number) for number in range(max(racks.values()) + 1)]
    unknown = [[pair for pair in pairs if pair not in known] for pairs in rounds_of_pairs(len(lowest))]
    wanted = [[_ordered(lowest[a], lowest[b]) for a, b in pairs] for pairs in unknown if pairs]
    num_rounds = max(1, MOST_PAIRS // max(1, len(lowest) // 2))
    return wanted[:num_rounds]


def apart(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """These pairs in rounds in which nobody is twice."""
    rounds: list[list[Pair]] = []
    for pair in pairs:
        free = (one for one in rounds if not any({*pair} & {*other} for other in one))
        found = next(free, None)
        if found is None:
            rounds.append([pair])
        else:
            found.append(pair)
    return rounds


def table(speeds: Speeds, machines: Sequence[int]) -> list[list[float]]:
    """Speeds of ranks by rank: those of their machines' links, and on one machine the best that any had inside."""
    of = {_ordered(machines[a], machines[b]): speed for (a, b), speed in speeds.items() if machines[a] != machines[b]}
    inside = max((speed for (a, b), speed in speeds.items() if machines[a] == machines[b]), default=0.0)

    def between(a: int, b: int) -> float:
        return inside if machines[a] == machines[b] else of.get(_ordered(machines[a], machines[b]), 0.0)

    size = len(machines)
    return [[0.0 if a == b else between(a, b) for b in range(size)] for a in range(size)]


def rounds_of_pairs(size: int) -> list[list[Pair]]:
    """All pairs of ranks in rounds: a tournament by the circle method."""
    seats = [*range(size), *([-1] if size % 2 else [])]
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        met = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([_ordered(a, b) for a, b in met if -1 not in (a, b)])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def _firsts(machines: Sequence[int]) -> list[int]:
    """The first rank of each machine."""
    return [rank for rank, machine in enumerate(machines) if machines.index(machine) == rank]


def _between(speeds: Speeds, a: int, b: int) -> float:
    return speeds.get(_ordered(a, b), 0.0)


def _ordered(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)
