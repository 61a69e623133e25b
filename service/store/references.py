"""What a job spec names besides itself: a bundle, a job to start from and a checkpoint of it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select

from service.states import ENDED_STATES, JobState
from service.store.port import StoreError
from service.store.rows import checkpoint_of
from service.store.schema import bundles, checkpoints, jobs
from workers.errors import FieldProblem
from workers.spec import JobSpec
from workers.spec_parts import InitFrom

MAX_TOLD_STEPS = 20


class UnknownReferenceError(StoreError):
    """The spec names something that is not there; ``problem`` says where and what to do, in words for its owner."""

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(detail)
        self.problem = FieldProblem(pointer, detail)


class UnknownBundleError(UnknownReferenceError):
    """The spec names a bundle that was not uploaded, or is gone."""


class UnknownJobError(UnknownReferenceError):
    """The spec starts from a job that is not there."""


class UnknownCheckpointError(UnknownReferenceError):
    """The spec starts from a checkpoint that its job does not have and, as it has ended, will not write."""


def check_references(conn: Connection, spec: JobSpec) -> None:
    """Raises UnknownReferenceError. The bundle last: whoever uploads one asks before about all else."""
    if spec.init_from is not None:
        _check_source(conn, spec.init_from)
    if spec.bundle is not None:
        found = conn.execute(select(bundles.c.id).where(bundles.c.id == spec.bundle))
        if found.one_or_none() is None:
            told = f"there is no bundle {spec.bundle[:80]!r}; upload it with POST /api/v1/bundles first"
            raise UnknownBundleError("/bundle", told)


def _check_source(conn: Connection, wish: InitFrom) -> None:
    state = conn.execute(select(jobs.c.state).where(jobs.c.id == wish.job)).scalar_one_or_none()
    if state is None:
        raise UnknownJobError("/init_from/job", f"there is no job {wish.job[:80]!r}; give a job's whole id")
    if JobState(state) not in ENDED_STATES:
        return  # it may yet write that step before this job starts, which looks again
    found = conn.execute(select(checkpoints.c.info).where(checkpoints.c.job_id == wish.job)).scalars()
    steps = sorted({checkpoint_of(text).step for text in found})
    if not steps:
        told = f"job {wish.job} has ended ({state}) without a checkpoint; start from another job, or leave it out"
        raise UnknownCheckpointError("/init_from/job", told)
    if wish.step not in ("latest", *steps):
        told = f"job {wish.job} has ended ({state}) and has no checkpoint of step {wish.step}; it has: {_told(steps)}"
        raise UnknownCheckpointError("/init_from/step", f"{told}; give one of these, or latest")


def _told(steps: Sequence[int]) -> str:
    left_out = len(steps) - MAX_TOLD_STEPS
    newest = ", ".join(str(step) for step in steps[-MAX_TOLD_STEPS:])
    return f"{newest} and {left_out} earlier ones" if left_out > 0 else newest
