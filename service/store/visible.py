"""Which points count: a restore starts a new lineage, and hides what older ones had from its first round on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, bindparam, or_, select

from service.store.schema import lineages, points
from service.store.statements import having
from service.stretches import Part

_LINEAGES = (
    select(lineages.c.attempt, lineages.c.lineage, lineages.c.first_round, lineages.c.last_round)
    .where(*having(lineages, "job_id"))
    .order_by(lineages.c.attempt.desc(), lineages.c.lineage.desc())
)
_LAST_BEFORE = (
    select(points.c.round, points.c.step)
    .where(
        *having(points, "job_id", "attempt", "lineage"),
        points.c.round >= bindparam("first"),
        points.c.round <= bindparam("last"),
        points.c.round < bindparam("before"),
    )
    .order_by(points.c.round.desc())
    .limit(1)
)


def visible_parts(conn: Connection, job_id: str) -> list[Part]:
    """The parts of a job's lineages that no later one has replaced, oldest first; rounds grow along them."""
    found = conn.execute(_LINEAGES, {"of_job_id": job_id})
    parts: list[Part] = []
    for attempt, lineage, first, last in found:
        if not parts or first < parts[-1].first:
            end = parts[-1].first if parts else last + 1
            parts.append(Part(attempt, lineage, first, min(last, end - 1), is_begin=True))
    return parts[::-1]


def in_parts(parts: Sequence[Part]) -> ColumnElement[bool]:
    """The condition on ``points`` that a point lies in one of the parts; ``parts`` is not empty."""
    return or_(
        *(
            and_(
                points.c.attempt == part.attempt,
                points.c.lineage == part.lineage,
                points.c.round >= part.first,
                points.c.round <= part.last,
            )
            for part in parts
        )
    )


class Counted(NamedTuple):
    """A round, and the optimizer steps up to its end."""

    round: int
    step: int


def counted_before(conn: Connection, job_id: str, round_number: int) -> Counted:
    """The last round before this one that is stored and counts; 0 where there is none."""
    for part in reversed(visible_parts(conn, job_id)):
        if part.first >= round_number:
            continue
        place = {"of_job_id": job_id, "of_attempt": part.attempt, "of_lineage": part.lineage}
        within = {"first": part.first, "last": part.last, "before": round_number}
        found = conn.execute(_LAST_BEFORE, {**place, **within}).one_or_none()
        if found is not None:
            return Counted(*found)
    return Counted(0, 0)
