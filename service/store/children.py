"""What schedules start, by kind: how a child is made, which ones live, and what ended ones came to.

A further kind adds its functions to ``CHILDREN``; see also ``service/targets.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, case, literal, or_, select

from service.ids import IdSource
from service.labels import SCHEDULE_LABEL
from service.promotion_records import PromotionState
from service.schedule_records import ScheduleRow
from service.states import ENDED_STATES, Move, Verb, command
from service.store.configuration_tables import promotions
from service.store.database import Write
from service.store.forebears import HAS_REPORTED, HAS_TRIED
from service.store.jobs import insert_job
from service.store.moves import fetch_job, move
from service.store.references import check_references
from service.store.schema import jobs, schedule_runs, sweeps, trials
from service.store.sweep_rows import fetch_sweep
from service.store.sweeps import check_sweep, insert_sweep, stop_promotion, stop_sweep
from service.sweep_records import ENDED_SWEEPS
from service.targets import Kind, Target
from tuning.spec import SweepSpec
from tuning.spec_parts import MAX_WARM_STARTS
from tuning.trial import TrialState
from workers.errors import Reason

STOPPED = "its schedule stopped it for the next run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Children:
    """One kind; all work in the caller's transaction.

    ``check``: raises UnknownReferenceError, for a sweep also UnknownSweepError and OtherMetricError,
    where none could be started now. ``start``: makes one, with a label that names the schedule, and gives its id.
    ``lives``: the condition on ``schedule_runs`` that the run's child is there and has not ended, nor what follows it
    by itself. ``cancel``: asks one to end; nothing happens to one that is about to. ``states``: by id, of those that
    are there. ``failed`` judges the state of an ended one, None where it speaks neither for nor against the child.
    """

    check: Callable[[Connection, Target], None]
    start: Callable[[Write, IdSource, Target, ScheduleRow], str]
    lives: ColumnElement[bool]
    cancel: Callable[[Write, str], None]
    states: Callable[[Connection, list[str]], dict[str, str]]
    failed: Callable[[str], bool | None]


def _start_job(write: Write, ids: IdSource, target: Target, schedule: ScheduleRow) -> str:
    labels = {**target.job.labels, SCHEDULE_LABEL: schedule.name}
    return insert_job(write, ids.job_id(write.now_s), target.job.model_copy(update={"labels": labels})).id


def _cancel_job(write: Write, job_id: str) -> None:
    job = fetch_job(write.conn, job_id)
    wanted = None if job is None else command(Verb.CANCEL, job.state, job.attempt)
    if job is not None and isinstance(wanted, Move):
        move(write, job, wanted.to, Reason.CANCELLED_BY_SCHEDULE, {"goal": wanted.goal, "explanation": None})


def _job_states(conn: Connection, ids: list[str]) -> dict[str, str]:
    found = conn.execute(select(jobs.c.id, jobs.c.state).where(jobs.c.id.in_(ids)))
    return {row.id: row.state for row in found}


def _start_sweep(write: Write, ids: IdSource, target: Target, schedule: ScheduleRow) -> str:
    """It learns from the schedule's last ones: night by night the search goes on where it was.

    Where the target names as many as there may be, its last ones give way.
    """
    spec = _sweep_spec(target)
    labels = {**target.job.labels, SCHEDULE_LABEL: schedule.name}
    earlier = dict.fromkeys((*_last_sweeps(write.conn, schedule.id, spec.metric), *spec.warm_start))
    told = {"job": {**spec.job, "labels": labels}, "warm_start": list(earlier)[:MAX_WARM_STARTS]}
    # Checked as one that is submitted: a row that cannot be read back would break every list that it is in.
    spec = SweepSpec.model_validate({**spec.model_dump(mode="json"), **told})
    return insert_sweep(write, ids.sweep_id(write.now_s), spec, target.job, target.origin).id


def _last_sweeps(conn: Connection, schedule_id: str, metric: str) -> Sequence[str]:
    """The latest of which anything was reported, and the latest with a trial that is complete.

    A night without such a trial must neither end the chain nor be left out of it: what it tried is not tried again,
    but for a night of which nothing was reported. Where nothing ever was, the latest that tried anything.
    """
    of_sweep = select(literal(1)).where(trials.c.sweep_id == sweeps.c.id)
    has_found, has_told, has_tried = (
        of_sweep.where(holds).exists() for holds in (trials.c.state == TrialState.COMPLETE, HAS_REPORTED, HAS_TRIED)
    )
    of_it = (schedule_runs.c.schedule_id == schedule_id, schedule_runs.c.kind == Kind.SWEEP, sweeps.c.metric == metric)
    run = select(sweeps.c.id).join(schedule_runs, schedule_runs.c.child_id == sweeps.c.id).where(*of_it)

    def latest(*ranks: ColumnElement[bool]) -> str | None:
        ranked = case(*((holds, rank) for rank, holds in enumerate(ranks)), else_=len(ranks))
        return conn.execute(run.order_by(ranked, schedule_runs.c.nominal_at.desc()).limit(1)).scalar_one_or_none()

    found = (latest(has_told, has_tried), latest(has_found, has_told, has_tried))
    return [sweep for sweep in dict.fromkeys(found) if sweep is not None]


def _check_sweep(conn: Connection, target: Target) -> None:
    check_sweep(conn, _sweep_spec(target), target.job)


def _sweep_spec(target: Target) -> SweepSpec:
    assert isinstance(target.spec, SweepSpec), target.kind
    return target.spec


# Three conditions and not one with OR inside, for which PostgreSQL would read all sweeps.
# A run is closed once it lives no more: a promotion that is asked for later is whoever's who asked.
_LIVING_SWEEP = (
    (sweeps.c.id == schedule_runs.c.child_id, sweeps.c.state.not_in(sorted(ENDED_SWEEPS))),
    (schedule_runs.c.is_open, sweeps.c.id == schedule_runs.c.child_id, sweeps.c.promote_to.is_not(None)),
    (
        schedule_runs.c.is_open,
        promotions.c.sweep_id == schedule_runs.c.child_id,
        promotions.c.state == PromotionState.RUNNING,
    ),
)
"""It searches; its winner is to be compared once it has ended; it is compared."""


def _stop_sweep(write: Write, sweep_id: str) -> None:
    """With its promotion: the next run would change the configuration under it, and both would be for nothing."""
    sweep = fetch_sweep(write.conn, sweep_id)
    if sweep is None:
        return
    if sweep.state in ENDED_SWEEPS:
        stop_promotion(write, sweep, STOPPED)
    else:
        stop_sweep(write, sweep, STOPPED)


def _sweep_states(conn: Connection, ids: list[str]) -> dict[str, str]:
    found = conn.execute(select(sweeps.c.id, sweeps.c.state).where(sweeps.c.id.in_(ids)))
    return {row.id: row.state for row in found}


def _failed(state: str) -> bool | None:
    """Alike for jobs and sweeps: what a person ended speaks neither for nor against it."""
    return {"FAILED": True, "SUCCEEDED": False}.get(state)


CHILDREN: Mapping[Kind, Children] = {
    Kind.JOB: Children(
        check=lambda conn, target: check_references(conn, target.job),
        start=_start_job,
        lives=select(literal(1))
        .where(jobs.c.id == schedule_runs.c.child_id, jobs.c.state.not_in(sorted(ENDED_STATES)))
        .exists(),
        cancel=_cancel_job,
        states=_job_states,
        failed=_failed,
    ),
    Kind.SWEEP: Children(
        check=_check_sweep,
        start=_start_sweep,
        lives=or_(*(select(literal(1)).where(*holds).exists() for holds in _LIVING_SWEEP)),
        cancel=_stop_sweep,
        states=_sweep_states,
        failed=_failed,
    ),
}


HAS_LIVING_CHILD = or_(*(and_(schedule_runs.c.kind == kind, each.lives) for kind, each in CHILDREN.items()))
"""The condition on ``schedule_runs``, whatever the kind."""


def children_of(target: Target) -> Children:
    """What to do with the children of such a target."""
    return CHILDREN[target.kind]
