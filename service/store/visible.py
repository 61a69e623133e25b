"""Which points count: a restore starts a new lineage, and hides what older ones had from its first round on."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from service.store.schema import lineages, points


@dataclass(frozen=True, slots=True)
class Span:
    """Of one lineage, the rounds below ``end`` count; all of them where it is None."""

    attempt: int
    lineage: int
    end: int | None

    def has(self, attempt: int, lineage: int, round: int) -> bool:
        """Whether a point of this key lies in the span."""
        return (attempt, lineage) == (self.attempt, self.lineage) and (self.end is None or round < self.end)


def visible_spans(conn: Connection, job_id: str) -> list[Span]:
    """The parts of a job's lineages that no later one has replaced, oldest first; rounds grow along them."""
    found = conn.execute(
        select(lineages.c.attempt, lineages.c.lineage, lineages.c.first_round)
        .where(lineages.c.job_id == job_id)
        .order_by(lineages.c.attempt.desc(), lineages.c.lineage.desc())
    )
    spans: list[Span] = []
    end: int | None = None
    for attempt, lineage, first_round in found:
        if end is None or first_round < end:
            spans.append(Span(attempt, lineage, end))
            end = first_round
    return spans[::-1]


def in_spans(spans: list[Span]) -> ColumnElement[bool]:
    """The condition on ``points`` that a point lies in one of the spans; ``spans`` is not empty."""
    return or_(
        *(
            and_(
                points.c.attempt == span.attempt,
                points.c.lineage == span.lineage,
                *(() if span.end is None else (points.c.round < span.end,)),
            )
            for span in spans
        )
    )


def num_skipped_before(conn: Connection, job_id: str, place: tuple[int, int, int]) -> int:
    """How many rounds that count before ``place`` (attempt, lineage, round) made no update."""
    attempt, lineage, round_number = place
    spans = [span for span in visible_spans(conn, job_id) if (span.attempt, span.lineage) <= (attempt, lineage)]
    if not spans:
        return 0
    counted = select(func.count()).where(
        points.c.job_id == job_id, points.c.is_skipped, points.c.round < round_number, in_spans(spans)
    )
    return int(conn.execute(counted).scalar_one())
