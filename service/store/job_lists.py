"""One page of the list of jobs, found by ids alone in narrow indexes: rows are wide, and read only where shown."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Connection, Select, bindparam, func, literal, select

from service.records import JobFilter, JobRow, ListPart
from service.states import JobState
from service.store.deleting import is_deleted
from service.store.list_parts import num_within_bound
from service.store.rows import job_of
from service.store.schema import job_labels, jobs
from service.store.statements import text_bytes

MAX_LABELLED = 500
"""Of a label with more jobs than that, those are looked through that the rest of the filter leaves."""

_IS_SHOWN = jobs.c.id.in_(bindparam("ids", expanding=True))
_ROWS = select(jobs).where(_IS_SHOWN)

Label: TypeAlias = tuple[str, str]


def page_of(conn: Connection, wanted: JobFilter, limit: int, before_id: str | None) -> ListPart[JobRow]:
    """At most ``limit`` jobs, newest first, those older than ``before_id``; fewer by MAX_PAGE_BYTES."""
    found = _ids(conn, wanted, limit + 1, before_id)
    sizes = conn.execute(_sizes(conn.dialect.name), {"ids": found[:limit]}).scalars()
    ids = found[: num_within_bound(sizes)]
    rows = {row.id: row for row in conn.execute(_ROWS, {"ids": ids})}
    return ListPart([job_of(rows[job_id]) for job_id in ids], has_more=len(found) > len(ids))


@cache
def _sizes(dialect: str) -> Select[int]:
    return select(text_bytes(jobs, dialect)).where(_IS_SHOWN).order_by(jobs.c.id.desc())


def _ids(conn: Connection, wanted: JobFilter, limit: int, before_id: str | None) -> list[str]:
    statements = _statements(conn, wanted, before_id)
    found = [job_id for each in statements for job_id in conn.execute(each.limit(limit)).scalars()]
    return sorted(found, reverse=True)[:limit]


def _statements(conn: Connection, wanted: JobFilter, before_id: str | None) -> list[Select[Any]]:
    """Each gives ids in order by an index; together they give all that are wanted, none twice."""
    labels = sorted(wanted.labels.items())
    texts = _texts(wanted)
    are_alone = not wanted.states and not texts
    if labels:
        number, rarest = (0, labels[0]) if are_alone and len(labels) == 1 else _rarest(conn, labels)
        if are_alone or number <= MAX_LABELLED:
            return [_of_label(rarest, wanted, before_id)]
    has_labels = [_has(label, jobs.c.id) for label in labels]
    older = () if before_id is None else (jobs.c.id < before_id,)
    found = (*texts, *has_labels, *older, ~is_deleted(jobs.c.id))
    newest = select(jobs.c.id).where(*found).order_by(jobs.c.id.desc())
    if not wanted.states and (wanted.name is not None or not texts):
        return [newest]
    return [newest.where(jobs.c.state == state) for state in sorted(wanted.states or JobState)]


def _of_label(label: Label, wanted: JobFilter, before_id: str | None) -> Select[Any]:
    job_id = job_labels.c.job_id
    chosen: list[ColumnElement[bool]] = [job_labels.c.key == label[0], job_labels.c.value == label[1]]
    chosen.append(~is_deleted(job_id))
    chosen += [_has(other, job_id) for other in sorted(wanted.labels.items()) if other != label]
    if before_id is not None:
        chosen.append(job_id < before_id)
    of_job = _texts(wanted)
    if wanted.states:
        of_job.append(jobs.c.state.in_(sorted(wanted.states)))
    if of_job:
        chosen.append(select(literal(1)).where(jobs.c.id == job_id, *of_job).exists())
    return select(job_id).where(*chosen).order_by(job_id.desc())


def _has(label: Label, job_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Looked up for each job that the rest leaves: a join might begin with all jobs of the label."""
    found = job_labels.alias()
    value = select(found.c.value).where(found.c.job_id == job_id, found.c.key == label[0]).scalar_subquery()
    return value == label[1]


def _rarest(conn: Connection, labels: Sequence[Label]) -> tuple[int, Label]:
    """The label that the fewest jobs have, and how many, as far as that matters."""
    numbers = []
    for key, value in labels:
        some = select(literal(1)).where(job_labels.c.key == key, job_labels.c.value == value)
        counted = select(func.count()).select_from(some.limit(MAX_LABELLED + 1).subquery())
        numbers.append(int(conn.execute(counted).scalar_one()))
    return min(zip(numbers, labels, strict=True))


def _texts(wanted: JobFilter) -> list[ColumnElement[bool]]:
    chosen: list[ColumnElement[bool]] = []
    if wanted.name is not None:
        chosen.append(jobs.c.name == wanted.name)
    if wanted.search:
        starts = jobs.c.id.startswith(wanted.search, autoescape=True)
        chosen.append(starts | jobs.c.name.contains(wanted.search, autoescape=True))
    return chosen
