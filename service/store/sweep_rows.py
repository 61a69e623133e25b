"""Between rows and records of sweeps and trials."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import asdict
from itertools import takewhile
from operator import itemgetter
from typing import Any, TypeAlias

from sqlalchemy import Connection, Row, bindparam, func, select, update

from service.configuration_records import Origin
from service.states import JobState
from service.store.database import Write
from service.store.port import StaleRowError
from service.store.rows import dumps
from service.store.schema import jobs, sweeps, trials
from service.store.statements import having
from service.sweep_records import Course, Spent, SweepRow, SweepState, Taking, TrialCounts, TrialRow, Wish
from tuning.orders import Places
from tuning.spec_parts import MAX_PARALLEL
from tuning.trial import Change, Report, TrialState

_BATCH_ROWS = 100
_SWEEP = select(sweeps).where(sweeps.c.id == bindparam("of"))
_TRIALS = (
    select(trials)
    .where(trials.c.sweep_id == bindparam("of"), trials.c.changed > bindparam("after"))
    .order_by(trials.c.number)
)
_SPENT = (
    select(trials.c.params, func.coalesce(jobs.c.worker_s, trials.c.seconds).label("seconds"))
    .outerjoin(jobs, jobs.c.id == trials.c.job_id)
    .where(trials.c.sweep_id == bindparam("of"))
)
_TRAINING = (
    select(trials.c.number)
    .join(jobs, jobs.c.id == trials.c.job_id)
    .where(trials.c.sweep_id == bindparam("of"), trials.c.is_open, jobs.c.state == JobState.RUNNING)
)
_LINE = (
    select(jobs.c.id, trials.c.number)
    .select_from(jobs.outerjoin(trials, (trials.c.job_id == jobs.c.id) & (trials.c.sweep_id == bindparam("of"))))
    .where(jobs.c.state == JobState.QUEUED)
    .order_by(jobs.c.queued_at, jobs.c.id)
    .limit(bindparam("at_most"))
)
"""The number is None for each job of somebody else."""
_UPDATE_SWEEP = update(sweeps).where(*having(sweeps, "id", "changed")).returning(sweeps)
_LENGTHS = (
    select(jobs.c.spec, jobs.c.total_samples)
    .join(trials, trials.c.job_id == jobs.c.id)
    .where(trials.c.sweep_id == bindparam("of"), jobs.c.total_samples.is_not(None))
    .order_by(trials.c.number)
    .limit(1)
)

_Told: TypeAlias = tuple[int, float | None]
"""Samples and the value there, None for no number."""


def sweep_of(row: Row[Any]) -> SweepRow:
    """A row of ``sweeps``."""
    return SweepRow(
        id=row.id,
        name=row.name,
        spec_json=row.spec,
        state=SweepState(row.state),
        reason=row.reason,
        version=row.version,
        changed=row.changed,
        num_trials=row.num_trials,
        term=row.term,
        importance=json.loads(row.importance),
        ran_s=row.ran_s,
        runs_since=row.runs_since,
        created_at=row.created_at,
        finished_at=row.finished_at,
        promote_to=row.promote_to,
        origin=None if row.origin_name is None else Origin(row.origin_name, row.origin_version),
    )


NO_COURSE = "{}"
"""In the column of a trial that no population has changed."""


def trial_of(row: Row[Any], rungs: Sequence[int] | None = None) -> TrialRow:
    """A row of ``trials``; where ``rungs`` are given, of its reports the first at each of them, and the last."""
    told = json.loads(row.reports)
    return TrialRow(
        number=row.number,
        params=json.loads(row.params),
        state=TrialState(row.state),
        wish=Wish(row.wish),
        is_held=row.is_held,
        must_retry=row.must_retry,
        value=row.value,
        reports=tuple(_report_of(*each) for each in (told if rungs is None else _compared(told, rungs))),
        job_id=row.job_id,
        reason=row.reason,
        seconds=row.seconds,
        started_at=row.started_at,
        finished_at=row.finished_at,
        changed=row.changed,
        seen=row.seen,
        course=_course_of(json.loads(row.course)),
    )


def _compared(told: Sequence[_Told], rungs: Sequence[int]) -> list[_Told]:
    """Those by which trials are held against each other, of reports by growing samples."""
    firsts = {bisect_left(told, rung, key=itemgetter(0)) for rung in rungs}
    return [told[at] for at in sorted({*firsts, len(told) - 1}) if 0 <= at < len(told)]


def _report_of(samples: int, value: float | None) -> Report:
    return Report(samples=samples, value=math.nan if value is None else value)


def _course_of(value: dict[str, Any]) -> Course:
    if not value:
        return Course()
    return Course(
        changes=tuple(Change(**change) for change in value["changes"]),
        taking=Taking(**value["taking"]) if value["taking"] else None,
        place=(value["place"][0], value["place"][1]),
        num_awaited=value["num_awaited"],
    )


def trial_columns(trial: TrialRow) -> dict[str, Any]:
    """All columns of a trial but its place."""
    return {
        "params": dumps(trial.params),
        "state": trial.state,
        "wish": trial.wish,
        "is_held": trial.is_held,
        "must_retry": trial.must_retry,
        "value": trial.value,
        "reports": dumps([[report.samples, report.value] for report in trial.reports]),
        "job_id": trial.job_id,
        "reason": trial.reason,
        "seconds": trial.seconds,
        "started_at": trial.started_at,
        "finished_at": trial.finished_at,
        "changed": trial.changed,
        "seen": trial.seen,
        "course": NO_COURSE if trial.course == Course() else dumps(asdict(trial.course)),
        "is_open": not trial.is_ended,
    }


def fetch_sweep(conn: Connection, sweep_id: str) -> SweepRow | None:
    """The row as this transaction sees it."""
    row = conn.execute(_SWEEP, {"of": sweep_id}).one_or_none()
    return None if row is None else sweep_of(row)


def fetch_trials(conn: Connection, sweep_id: str, after: int = -1) -> list[TrialRow]:
    """The trials of a sweep that were written after that change, by number."""
    return [trial_of(row) for row in conn.execute(_TRIALS, {"of": sweep_id, "after": after})]


def fetch_compared(conn: Connection, sweep_id: str, rungs: Sequence[int]) -> list[TrialRow]:
    """All trials of a sweep, by number, each with the reports that ``trial_of`` keeps: a sweep may have millions."""
    rows = conn.execute(_TRIALS, {"of": sweep_id, "after": -1}, execution_options={"yield_per": _BATCH_ROWS})
    return [trial_of(row, rungs) for row in rows]


def fetch_spent(conn: Connection, sweep_id: str) -> tuple[Spent, ...]:
    """What each trial has used by now, as its job tells it: rows of trials learn it with their next report."""
    rows = conn.execute(_SPENT, {"of": sweep_id})
    return tuple(Spent(params=json.loads(row.params), seconds=row.seconds) for row in rows)


def fetch_places(conn: Connection, sweep_id: str, passed_over: Collection[str]) -> Places:
    """Which trials train, and which wait at the head of the line; see ``Places``.

    Jobs of somebody else that are ``passed_over``, by id, have no place in the line: none that comes free is for them.
    """
    line = conn.execute(_LINE, {"of": sweep_id, "at_most": MAX_PARALLEL + len(passed_over)})
    counted = (row.number for row in line if row.number is not None or row.id not in passed_over)
    return Places(
        training=frozenset(conn.execute(_TRAINING, {"of": sweep_id}).scalars()),
        lacking=tuple(takewhile(lambda number: number is not None, counted)),
    )


def samples_per_epoch(conn: Connection, sweep_id: str) -> int | None:
    """The size of the data on which the trials train, as the first told it that was built; None before that."""
    row = conn.execute(_LENGTHS, {"of": sweep_id}).one_or_none()
    epochs = None if row is None else json.loads(row.spec).get("epochs")
    return None if row is None or not epochs else max(1, round(row.total_samples / epochs))


def update_sweep(write: Write, sweep: SweepRow, columns: dict[str, Any]) -> SweepRow:
    """Write columns if nobody has written since the caller read; the row as it is then. Raises StaleRowError."""
    seen = {"of_id": sweep.id, "of_changed": sweep.changed}
    row = write.conn.execute(_UPDATE_SWEEP, {**columns, "changed": write.change, **seen}).one_or_none()
    if row is None:
        raise StaleRowError(f"{sweep.id} is no longer as at change {sweep.changed}; read it again")
    return sweep_of(row)


def moved(sweep: SweepRow, to: SweepState, reason: str | None, now_s: float) -> dict[str, Any]:
    """Columns of a change of state: the clock runs while the sweep does; what is stopped or fails promotes nothing."""
    has_ended = to in (SweepState.STOPPED, SweepState.SUCCEEDED, SweepState.FAILED)
    return {
        **({"promote_to": None} if to in (SweepState.STOPPED, SweepState.FAILED) else {}),
        "state": to,
        "reason": reason,
        "version": sweep.version + 1,
        "ran_s": sweep.time_s(now_s),
        "runs_since": now_s if to is SweepState.RUNNING else None,
        "finished_at": now_s if has_ended else None,
    }


def counts_of(conn: Connection, sweep_ids: Sequence[str]) -> dict[str, TrialCounts]:
    """How many trials of each state, by the sweep's id."""
    grouped = (
        select(trials.c.sweep_id, trials.c.state, func.count().label("number"))
        .where(trials.c.sweep_id.in_(sweep_ids))
        .group_by(trials.c.sweep_id, trials.c.state)
    )
    found: dict[str, dict[str, int]] = {sweep_id: {} for sweep_id in sweep_ids}
    for row in conn.execute(grouped):
        found[row.sweep_id][TrialState(row.state).lower()] = row.number
    return {sweep_id: TrialCounts(**counts) for sweep_id, counts in found.items()}
