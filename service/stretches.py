"""Stretches of a job's rounds: of each series the ends and the extremes, all that a chart shows of many points. Pure.

Rounds of a lineage are cut at multiples of ``WIDTHS``; a stretch of one width holds ``FACTOR`` of the next finer one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import NamedTuple, TypeAlias

from service.picking import Read

FACTOR = 4
WIDTHS: tuple[int, ...] = tuple(accumulate([16, *[FACTOR] * 12], mul))
"""Rounds in a stretch, finest first; the coarsest holds more than any job has."""


class Extremes(NamedTuple):
    """One series in one stretch: the rounds that told it first and last, its least and its greatest value and where."""

    first: int
    least_at: int
    least: float
    most_at: int
    most: float
    last: int


Stretch: TypeAlias = Mapping[str, Extremes]


@dataclass(frozen=True, slots=True)
class Part:
    """Rounds ``first`` to ``last`` of a lineage, both included; ``is_begin``: the lineage has none before."""

    attempt: int
    lineage: int
    first: int
    last: int
    is_begin: bool


@dataclass(frozen=True, slots=True)
class Range:
    """Rounds from ``begin`` to below ``end``; in stretches of ``width``, or point by point where that is 1."""

    width: int
    begin: int
    end: int


def stretch_of(points: Iterable[tuple[int, Mapping[str, float]]]) -> Stretch:
    """The stretch that these rounds, in order, make with their values."""
    told: dict[str, tuple[list[int], list[float]]] = {}
    for at, values in points:
        for key, value in values.items():
            if key not in told:
                told[key] = ([], [])
            rounds, numbers = told[key]
            rounds.append(at)
            numbers.append(value)
    return {key: _extremes(rounds, numbers) for key, (rounds, numbers) in told.items()}


def _extremes(rounds: list[int], numbers: list[float]) -> Extremes:
    least, most = min(numbers), max(numbers)
    return Extremes(rounds[0], rounds[numbers.index(least)], least, rounds[numbers.index(most)], most, rounds[-1])


def merged(stretches: Iterable[Stretch]) -> Stretch:
    """One stretch out of several in order."""
    found: dict[str, Extremes] = {}
    for stretch in stretches:
        for key, new in stretch.items():
            known = found.get(key)
            if known is None:
                found[key] = new
                continue
            first, least_at, least, most_at, most, _ = known
            if new.least < least:
                least_at, least = new.least_at, new.least
            if new.most > most:
                most_at, most = new.most_at, new.most
            found[key] = Extremes(first, least_at, least, most_at, most, new.last)
    return found


def encode(stretch: Stretch, begin: int) -> str:
    """As compact JSON; rounds are told from ``begin`` on."""
    texts = {
        key: (e.first - begin, e.least_at - begin, e.least, e.most_at - begin, e.most, e.last - begin)
        for key, e in stretch.items()
    }
    return json.dumps(texts, separators=(",", ":"), allow_nan=False)


def decode(text: str, begin: int, read: Read = json.loads) -> Stretch:
    """What was encoded, of the keys that ``read`` gives."""
    return {
        key: Extremes(first + begin, least_at + begin, least, most_at + begin, most, last + begin)
        for key, (first, least_at, least, most_at, most, last) in read(text).items()
    }


def width_for(num_rounds: int, num_stretches: int) -> int:
    """The finest width at which so many rounds make no more stretches than that."""
    return next((width for width in WIDTHS if num_rounds <= width * num_stretches), WIDTHS[-1])


def ranges(part: Part, width: int) -> Iterator[Range]:
    """The part in whole stretches of ``width``, and what is left at its ends in finer ones and single rounds.

    A stretch that begins before the lineage has nothing of others in it, and counts as whole. Not in order.
    """
    begin, end = part.first, part.last + 1
    if width < WIDTHS[0]:
        yield Range(1, begin, end)
        return
    inner = begin // width * width if part.is_begin else -(-begin // width) * width
    outer = end // width * width
    if inner >= outer:
        yield from ranges(part, width // FACTOR)
        return
    yield Range(width, inner, outer)
    if begin < inner:
        yield from ranges(replace(part, last=inner - 1), width // FACTOR)
    if outer < end:
        yield from ranges(replace(part, first=outer, is_begin=False), width // FACTOR)
