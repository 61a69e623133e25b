"""What schedules start, by kind: how a child is made, which ones live, and what ended ones came to.

A further kind adds its functions to ``CHILDREN``; see also ``service/targets.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, literal, or_, select

from service.ids import IdSource
from service.states import ENDED_STATES, JobState, Move, Verb, command
from service.store.database import Write
from service.store.jobs import check_references, insert_job
from service.store.moves import fetch_job, move
from service.store.schema import jobs, schedule_runs
from service.targets import Kind, Target
from workers.errors import Reason
from workers.spec import JobSpec

SCHEDULE_LABEL = "schedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Children:
    """One kind; all work in the caller's transaction.

    ``check``: raises UnknownBundleError, UnknownJobError where none could be started now. ``start``: makes one, with
    a label that names the schedule, and gives its id. ``lives``: the condition on ``schedule_runs`` that the run's
    child is there and has not ended. ``cancel``: asks one to end; nothing happens to one that is about to.
    ``states``: by id, of those that are there. ``failed`` judges the state of an ended one, None where it speaks
    neither for nor against the child.
    """

    check: Callable[[Connection, JobSpec], None]
    start: Callable[[Write, IdSource, JobSpec, str], str]
    lives: ColumnElement[bool]
    cancel: Callable[[Write, str], None]
    states: Callable[[Connection, list[str]], dict[str, str]]
    failed: Callable[[str], bool | None]


def _start(write: Write, ids: IdSource, spec: JobSpec, schedule: str) -> str:
    labelled = spec.model_copy(update={"labels": {SCHEDULE_LABEL: schedule, **spec.labels}})
    return insert_job(write, ids.job_id(write.now_s), labelled).id


def _cancel(write: Write, job_id: str) -> None:
    job = fetch_job(write.conn, job_id)
    wanted = None if job is None else command(Verb.CANCEL, job.state, job.attempt)
    if job is not None and isinstance(wanted, Move):
        move(write, job, wanted.to, Reason.CANCELLED_BY_SCHEDULE, {"goal": wanted.goal, "explanation": None})


def _states(conn: Connection, ids: list[str]) -> dict[str, str]:
    found = conn.execute(select(jobs.c.id, jobs.c.state).where(jobs.c.id.in_(ids)))
    return {row.id: row.state for row in found}


def _failed(state: str) -> bool | None:
    return {JobState.FAILED: True, JobState.SUCCEEDED: False}.get(JobState(state))


CHILDREN: Mapping[Kind, Children] = {
    Kind.JOB: Children(
        check=check_references,
        start=_start,
        lives=select(literal(1))
        .where(jobs.c.id == schedule_runs.c.child_id, jobs.c.state.not_in(sorted(ENDED_STATES)))
        .exists(),
        cancel=_cancel,
        states=_states,
        failed=_failed,
    )
}


HAS_LIVING_CHILD = or_(*(and_(schedule_runs.c.kind == kind, each.lives) for kind, each in CHILDREN.items()))
"""The condition on ``schedule_runs``, whatever the kind."""


def children_of(target: Target) -> Children:
    """What to do with the children of such a target."""
    return CHILDREN[target.kind]
