"""Which points count: a restore starts a new lineage, and hides what older ones had from its first round on."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from service.store.schema import lineages, points
from service.stretches import Part


def visible_parts(conn: Connection, job_id: str) -> list[Part]:
    """The parts of a job's lineages that no later one has replaced, oldest first; rounds grow along them."""
    found = conn.execute(
        select(lineages.c.attempt, lineages.c.lineage, lineages.c.first_round, lineages.c.last_round)
        .where(lineages.c.job_id == job_id)
        .order_by(lineages.c.attempt.desc(), lineages.c.lineage.desc())
    )
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


def num_skipped_before(conn: Connection, job_id: str, place: tuple[int, int, int]) -> int:
    """How many rounds that count before ``place`` (attempt, lineage, round) made no update."""
    attempt, lineage, round_number = place
    parts = [part for part in visible_parts(conn, job_id) if (part.attempt, part.lineage) <= (attempt, lineage)]
    if not parts:
        return 0
    counted = select(func.count()).where(
        points.c.job_id == job_id, points.c.is_skipped, points.c.round < round_number, in_parts(parts)
    )
    return int(conn.execute(counted).scalar_one())
