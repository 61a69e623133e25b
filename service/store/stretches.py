"""Roll-ups: stretches of rounds, written with the points that make them whole, from what is stored of them.

A stretch belongs to one lineage, so one that is given up takes its own with it: which rounds count is asked when
they are read, and at the borders single rounds are read instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Connection, bindparam, delete, insert, select

from service.picking import Read, reader
from service.store.schema import lineages, points, stretches
from service.store.statements import having
from service.stretches import FACTOR, WIDTHS, Part, Range, Stretch, decode, encode, merged, ranges, stretch_of

LineageKey: TypeAlias = tuple[str, int, int]
"""Job, attempt, lineage."""

_PLACE = ("job_id", "attempt", "lineage")
_POINTS = (
    select(points.c.round, points.c["values"])
    .where(
        *(points.c[name] == bindparam(name) for name in _PLACE),
        points.c.round >= bindparam("begin"),
        points.c.round < bindparam("end"),
    )
    .order_by(points.c.round)
)
_STRETCHES = (
    select(stretches.c.begin, stretches.c["values"])
    .where(
        *(stretches.c[name] == bindparam(name) for name in _PLACE),
        stretches.c.width == bindparam("width"),
        stretches.c.begin >= bindparam("begin"),
        stretches.c.begin < bindparam("end"),
    )
    .order_by(stretches.c.begin)
)
_DROP = delete(stretches).where(
    *having(stretches, *_PLACE, "width"),
    stretches.c.begin >= bindparam("from_begin"),
    stretches.c.begin < bindparam("to_end"),
)
MAX_AT_ONCE = 256
"""Stretches that are written from one look at what they are made of."""


class Piece(NamedTuple):
    """A stretch as stored, from round ``begin`` on; of ``width`` 1: a point."""

    width: int
    begin: int
    text: str


def roll_up(conn: Connection, key: LineageKey, touched: Collection[int], last_round: int) -> None:
    """Write the stretches that hold a touched round and are whole, now that ``last_round`` is the last one stored.

    ``touched`` are the rounds that were stored, and the one that was the last before: its stretch may be whole now
    without another round in it. Writing again what is written changes nothing.
    """
    for width in WIDTHS:
        begins = {each // width * width for each in touched}
        whole = sorted(begin for begin in begins if begin + width - 1 <= last_round)
        for run in _runs(whole, width):
            _write(conn, key, width, run)
        if not whole:
            return


def roll_up_all(conn: Connection) -> None:
    """Write every stretch of all points that are stored."""
    for row in conn.execute(select(lineages)).all():
        starts = range(row.first_round, row.last_round + 1, WIDTHS[0])
        roll_up(conn, (row.job_id, row.attempt, row.lineage), [*starts, row.last_round], row.last_round)


def _runs(begins: Sequence[int], width: int) -> Iterator[Range]:
    """Stretches that follow one another, taken together, as ranges of the finer ones that they are made of."""
    first = 0
    for n in range(1, len(begins) + 1):
        if n == len(begins) or begins[n] != begins[n - 1] + width or n - first == MAX_AT_ONCE:
            finer = width // FACTOR if width > WIDTHS[0] else 1
            yield Range(finer, begins[first], begins[n - 1] + width)
            first = n


def _write(conn: Connection, key: LineageKey, width: int, run: Range) -> None:
    place = {**dict(zip(_PLACE, key, strict=True)), "width": width}
    pieces = groupby(_pieces(conn, key, run), key=lambda piece: piece.begin // width * width)
    told = ((begin, _join(same, reader(None))) for begin, same in pieces)
    rows = [{**place, "begin": begin, "values": encode(stretch, begin)} for begin, stretch in told if stretch]
    conn.execute(_DROP, {**{f"of_{k}": v for k, v in place.items()}, "from_begin": run.begin, "to_end": run.end})
    if rows:
        conn.execute(insert(stretches), rows)


def _pieces(conn: Connection, key: LineageKey, wanted: Range) -> Iterator[Piece]:
    statement = _POINTS if wanted.width == 1 else _STRETCHES
    place: dict[str, Any] = {**dict(zip(_PLACE, key, strict=True)), "begin": wanted.begin, "end": wanted.end}
    if wanted.width > 1:
        place["width"] = wanted.width
    for begin, text in conn.execute(statement, place):
        yield Piece(wanted.width, begin, text)


def pieces_of(conn: Connection, job_id: str, parts: Sequence[Part], width: int) -> list[Piece]:
    """What makes stretches of ``width`` out of these parts, in order."""
    found: list[Piece] = []
    for part in parts:
        key = (job_id, part.attempt, part.lineage)
        of_part = [piece for wanted in ranges(part, width) for piece in _pieces(conn, key, wanted)]
        # A first stretch may begin before its part, and before the last rounds of the part before.
        found += sorted(of_part, key=lambda piece: piece.begin)
    return found


def joined(pieces: Sequence[Piece], width: int, keys: frozenset[str] | None) -> list[Stretch]:
    """Stretches of ``width`` out of pieces in order; only of ``keys``, where given."""
    read = reader(keys)
    return [_join(same, read) for _, same in groupby(pieces, key=lambda piece: piece.begin // width)]


def _join(pieces: Iterable[Piece], read: Read) -> Stretch:
    """One stretch; neighbours that are points are taken together, which is much faster."""
    found: list[Stretch] = []
    for are_points, same in groupby(pieces, key=lambda piece: piece.width == 1):
        if are_points:
            found.append(stretch_of((piece.begin, read(piece.text)) for piece in same))
        else:
            found += [decode(piece.text, piece.begin, read) for piece in same]
    return found[0] if len(found) == 1 else merged(found)
