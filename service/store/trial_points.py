"""What the points of its job report of a trial."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection, bindparam, select

from service.store.progress import EVAL_PREFIX
from service.store.schema import points
from service.sweep_records import TrialRow
from service.sweeping import News
from tuning.trial import Report

MAX_UNREAD = 200
"""So many points without the metric are passed over before that is noted."""

_NEW_POINTS = (
    select(points.c.attempt, points.c.lineage, points.c.cursor, points.c["values"], points.c.changed)
    .where(points.c.job_id == bindparam("of"), points.c.changed > bindparam("after"))
    .order_by(points.c.attempt, points.c.lineage, points.c.round)
)
_LAST_POINTS = (
    select(points.c["values"])
    .where(points.c.job_id == bindparam("of"))
    .order_by(points.c.attempt.desc(), points.c.lineage.desc(), points.c.round.desc())
    .limit(MAX_UNREAD)
)


def new_reports(conn: Connection, trial: TrialRow, metric: str) -> tuple[TrialRow, News]:
    """The trial with what it was seen of, and what is new; see ``_gone_on`` for one that took another's state over."""
    found = conn.execute(_NEW_POINTS, {"of": trial.job_id, "after": trial.seen}).all()
    reports: list[Report] = []
    others: list[str] = []
    before = trial
    sought = f'"{EVAL_PREFIX}' if metric.startswith(EVAL_PREFIX) else json.dumps(metric)
    for row in found:
        values = json.loads(row.values) if sought in row.values else {}
        if metric not in values:
            others = others or [key for key in values if key.startswith(EVAL_PREFIX)]
            continue
        if trial.course.changes:
            trial, reports = _gone_on(trial, reports, (row.attempt, row.lineage), row.cursor)
        value = math.nan if values[metric] is None else float(values[metric])
        reports.append(Report(samples=row.cursor, value=value))
    is_worth_noting = reports or len(found) > MAX_UNREAD
    seen = max((row.changed for row in found), default=trial.seen) if is_worth_noting else trial.seen
    return replace(trial if reports else before, seen=seen), News(metric=metric, reports=reports, others=others)


def last_keys(conn: Connection, job_id: str) -> frozenset[str]:
    """Under what a job reported at last."""
    return frozenset(key for row in conn.execute(_LAST_POINTS, {"of": job_id}) for key in json.loads(row.values))


def _gone_on(
    trial: TrialRow, reports: list[Report], place: tuple[int, int], cursor: int
) -> tuple[TrialRow, list[Report]]:
    """With the first report of a state that was taken over, at ``cursor``, what the one given up told past it is void.

    Reports of that one may come late, and come on where the other could not be had. What comes of a further place is
    of a job that was restored, and tells all from there on anew.
    """
    course = trial.course
    if place <= course.place:
        if course.num_awaited == 1:
            own = replace(course.changes[-1], donor=None, samples=course.changes[-1].given_up)
            course = replace(course, changes=(*course.changes[:-1], own))
        return replace(trial, course=replace(course, num_awaited=max(0, course.num_awaited - 1))), reports
    line = cursor - 1 if course.num_awaited == 0 else min(cursor - 1, course.changes[-1].samples)
    trial = replace(trial, reports=upto(line, trial.reports), course=replace(course, place=place, num_awaited=0))
    return trial, list(upto(line, reports))


def upto(samples: int, reports: Sequence[Report]) -> tuple[Report, ...]:
    """Those that remain where the state of ``samples`` gives way to another's: up to there it was the trial's."""
    return tuple(report for report in reports if report.samples <= samples)
