"""Between rows and records of schedules; reading what a decision needs, and writing what was decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, case, delete, func, insert, select, update

from service.firing import may_start
from service.ids import IdSource
from service.schedule_records import (
    Due,
    EndedChild,
    Firing,
    NewRun,
    Outcome,
    RunRow,
    ScheduleRow,
    ScheduleState,
    Upcoming,
)
from service.store.children import CHILDREN, HAS_LIVING_CHILD, children_of
from service.store.configurations import fetch_configuration
from service.store.database import Write
from service.store.port import StaleRowError
from service.store.references import UnknownReferenceError
from service.store.schema import schedule_runs as runs
from service.store.schema import schedules
from service.store.sweeps import OtherMetricError, UnknownConfigurationError, UnknownSweepError
from service.targets import Kind, Target
from workers.errors import SpecError

MAX_RUNS = 1000
"""Of one schedule; older ones go, the children that they made stay."""

MAX_FAULT_CHARS = 1_000
"""Of what is told of a refused target: it may have many faults, and each of its runs tells of them."""

_OPEN = frozenset({Outcome.STARTED, Outcome.BUFFERED})

# Built once: putting a statement together takes longer than SQLite does to run it.
_OF_SCHEDULE = runs.c.schedule_id == bindparam("of")
WITH_LIVING = select(runs, HAS_LIVING_CHILD.label("has_living"))
_OPEN_RUNS = WITH_LIVING.where(_OF_SCHEDULE, runs.c.is_open)
_SUMMARY = select(func.sum(case((HAS_LIVING_CHILD, 1), else_=0)), func.max(runs.c.nominal_at)).where(_OF_SCHEDULE)
_LIVING = select(runs.c.kind, runs.c.child_id).where(_OF_SCHEDULE, HAS_LIVING_CHILD)
_SCHEDULE = select(schedules).where(schedules.c.id == bindparam("of"))


def schedule_of(row: Row[Any]) -> ScheduleRow:
    """A row of ``schedules``."""
    return ScheduleRow(
        id=row.id,
        name=row.name,
        spec_json=row.spec,
        state=ScheduleState(row.state),
        reason=row.reason,
        version=row.version,
        changed=row.changed,
        upcoming=None if row.next_at is None else Upcoming(row.next_nominal, row.next_at),
        num_failures=row.num_failures,
        created_at=row.created_at,
    )


def fetch_schedule(conn: Connection, schedule_id: str) -> ScheduleRow | None:
    """The row as this transaction sees it."""
    row = conn.execute(_SCHEDULE, {"of": schedule_id}).one_or_none()
    return None if row is None else schedule_of(row)


def runs_of(conn: Connection, found: Sequence[Row[Any]]) -> list[RunRow]:
    """Rows of ``WITH_LIVING``, with the states of their children."""
    states: dict[str, str] = {}
    for kind, of_kind in CHILDREN.items():
        if ids := [row.child_id for row in found if row.kind == kind and row.child_id]:
            states |= of_kind.states(conn, ids)
    return [
        RunRow(
            nominal_at=row.nominal_at,
            fired_at=row.fired_at,
            outcome=Outcome(row.outcome),
            kind=Kind(row.kind),
            child_id=row.child_id,
            child_state=states.get(row.child_id or ""),
            child_lives=bool(row.has_living),
            reason=row.reason,
        )
        for row in found
    ]


def due_of(conn: Connection, schedule: ScheduleRow) -> Due:
    """Everything that a decision about a schedule looks at."""
    found = conn.execute(_OPEN_RUNS, {"of": schedule.id}).all()
    (num_living, latest_at) = conn.execute(_SUMMARY, {"of": schedule.id}).one()
    waiting = [run.nominal_at for run in found if run.outcome == Outcome.BUFFERED]
    return Due(
        schedule=schedule,
        num_living=num_living or 0,
        buffered_at=min((each for each in waiting if may_start(schedule.state, each)), default=None),
        ended=_ended(conn, [run for run in found if run.outcome == Outcome.STARTED and not run.has_living]),
        latest_at=latest_at,
        fault=_fault(conn, schedule),
    )


def _ended(conn: Connection, found: Sequence[Row[Any]]) -> tuple[EndedChild, ...]:
    """A child that is gone had ended before, nobody knows how."""
    return tuple(
        EndedChild(run.nominal_at, None if run.child_state is None else CHILDREN[run.kind].failed(run.child_state))
        for run in runs_of(conn, found)
    )


def _fault(conn: Connection, schedule: ScheduleRow) -> str | None:
    try:
        target = _target(conn, schedule)
        children_of(target).check(conn, target)
    except SpecError as error:
        return f"its target is refused by now: {error!s:.{MAX_FAULT_CHARS}}; replace the schedule"
    except UnknownReferenceError as error:
        return f"what its target names is not there any more: {error}; replace the schedule"
    except (UnknownSweepError, OtherMetricError) as error:
        return f"warm_start: {error.args[0]} cannot be learned from any more; replace the schedule"
    except UnknownConfigurationError as error:
        return f"promote: there is no configuration {error.args[0]!r} any more; put one, or replace the schedule"
    return None


def _target(conn: Connection, schedule: ScheduleRow) -> Target:
    name = schedule.configuration
    return schedule.target(None if name is None else fetch_configuration(conn, name))


def update_guarded(write: Write, schedule: ScheduleRow, columns: dict[str, Any]) -> ScheduleRow:
    """Write columns if nobody has written since the caller read; the row as it is then. Raises StaleRowError."""
    row = write.conn.execute(
        update(schedules)
        .where(schedules.c.id == schedule.id, schedules.c.changed == schedule.changed)
        .values(**columns, changed=write.change)
        .returning(schedules)
    ).one_or_none()
    if row is None:
        raise StaleRowError(f"{schedule.id} is no longer as at change {schedule.changed}; read it again")
    return schedule_of(row)


def write_firing(write: Write, ids: IdSource, schedule: ScheduleRow, firing: Firing) -> ScheduleRow:
    """Write all that was decided, with the children it starts. Raises StaleRowError."""
    upcoming = firing.upcoming
    columns: dict[str, Any] = {
        "state": firing.state,
        "reason": firing.reason,
        "version": schedule.version + (firing.state is not schedule.state),
        "next_nominal": upcoming and upcoming.nominal_at,
        "next_at": upcoming and upcoming.due_at,
        "num_failures": firing.num_failures,
    }
    written = update_guarded(write, schedule, columns)
    of_it = runs.c.schedule_id == schedule.id
    if ended := [child.nominal_at for child in firing.ended]:
        write.conn.execute(update(runs).where(of_it, runs.c.nominal_at.in_(ended)).values(is_open=False))
    if firing.should_cancel:
        for kind, child_id in write.conn.execute(_LIVING, {"of": schedule.id}).all():
            CHILDREN[Kind(kind)].cancel(write, child_id)
    if firing.runs:
        _add_runs(write, ids, schedule, firing.runs)
    return written


def _add_runs(write: Write, ids: IdSource, schedule: ScheduleRow, new: Sequence[NewRun]) -> None:
    """What was decided about a nominal time once is never decided again, but for one that waited."""
    of_it = runs.c.schedule_id == schedule.id
    times = [run.nominal_at for run in new]
    waited = (of_it, runs.c.nominal_at.in_(times), runs.c.outcome == Outcome.BUFFERED)
    write.conn.execute(delete(runs).where(*waited))
    known = set(write.conn.execute(select(runs.c.nominal_at).where(of_it, runs.c.nominal_at.in_(times))).scalars())
    for run in new:
        if run.nominal_at not in known:
            write.conn.execute(insert(runs).values(_columns(write, ids, schedule, run)))
    oldest = select(runs.c.nominal_at).where(of_it).order_by(runs.c.nominal_at.desc()).offset(MAX_RUNS - 1).limit(1)
    write.conn.execute(delete(runs).where(of_it, runs.c.nominal_at < oldest.scalar_subquery(), ~runs.c.is_open))


def _columns(write: Write, ids: IdSource, schedule: ScheduleRow, run: NewRun) -> dict[str, Any]:
    child_id, kind = None, next(iter(schedule.spec.target))
    if run.outcome is Outcome.STARTED:
        target = _target(write.conn, schedule)
        child_id = children_of(target).start(write, ids, target, schedule)
    return {
        "schedule_id": schedule.id,
        "nominal_at": run.nominal_at,
        "outcome": run.outcome,
        "kind": kind,
        "child_id": child_id,
        "reason": run.reason,
        "fired_at": write.now_s,
        "is_open": run.outcome in _OPEN,
    }
