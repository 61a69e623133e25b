"""The points of a job just before and just after a change, found without reading those between."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Connection, Row, select

from service.report import Moment
from service.store.schema import points
from service.stretches import Part

PointRow: TypeAlias = Row[Any, Any, Any, Any, Any]

_COLUMNS = (points.c.round, points.c.step, points.c.time, points.c["values"], points.c.changed)


def points_near(
    conn: Connection, job_id: str, parts: Sequence[Part], moment: Moment, limit: int
) -> tuple[Sequence[PointRow], Sequence[PointRow]]:
    """At most ``limit`` points up to ``moment`` and from it on, of one part, each by growing round."""
    part = next((p for p in reversed(parts) if _told(conn, job_id, p, p.first, points.c.time) <= moment.time), None)
    if part is None:
        return (), ()
    following = _following(conn, job_id, part, moment)
    of_part = _of_part(job_id, part)
    before = of_part.where(points.c.round < following).order_by(points.c.round.desc()).limit(limit)
    after = of_part.where(points.c.round >= following).order_by(points.c.round).limit(limit)
    return conn.execute(before).all()[::-1], conn.execute(after).all()


def _following(conn: Connection, job_id: str, part: Part, moment: Moment) -> int:
    """The first round of a part that counts as after the moment."""
    rounds = range(part.first, part.last + 1)
    if moment.samples is None:
        return part.first + bisect_right(
            rounds, moment.time, key=lambda at: _told(conn, job_id, part, at, points.c.time)
        )
    drawn_before = points.c.cursor - points.c.samples
    return part.first + _num_below(conn, job_id, part, drawn_before, moment.samples)


def first_with(conn: Connection, job_id: str, part: Part, what: ColumnElement[Any], least: float) -> int | None:
    """The first round of a part that is stored and has so much of ``what``, which grows with the rounds."""
    begin = part.first + _num_below(conn, job_id, part, what, least)
    place = (points.c.job_id == job_id, points.c.attempt == part.attempt, points.c.lineage == part.lineage)
    from_there = select(points.c.round).where(*place, points.c.round.between(begin, part.last))
    return conn.execute(from_there.order_by(points.c.round).limit(1)).scalar_one_or_none()


def _num_below(conn: Connection, job_id: str, part: Part, what: ColumnElement[Any], least: float) -> int:
    rounds = range(part.first, part.last + 1)
    return bisect_left(rounds, float(least), key=lambda at: _told(conn, job_id, part, at, what))


def _of_part(job_id: str, part: Part) -> Any:
    place = (points.c.job_id == job_id, points.c.attempt == part.attempt, points.c.lineage == part.lineage)
    return select(*_COLUMNS).where(*place, points.c.round.between(part.first, part.last))


def _told(conn: Connection, job_id: str, part: Part, at: int, what: ColumnElement[Any]) -> float:
    """``what`` of the first round from ``at`` on that is stored; of a thinned history some are not."""
    place = (points.c.job_id == job_id, points.c.attempt == part.attempt, points.c.lineage == part.lineage)
    from_there = select(what).where(*place, points.c.round >= at).order_by(points.c.round).limit(1)
    found = conn.execute(from_there).scalar_one_or_none()
    return float("inf") if found is None else float(found)
