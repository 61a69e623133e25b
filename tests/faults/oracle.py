"""The one judge of every fault test: reads what remains, and says which promises were broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from service.states import PLACED_STATES, JobState
from tests.faults.books import judge_checkpoints, judge_events, judge_points, judge_timeline
from tests.faults.diary import Note, by_job
from tests.faults.evidence import Evidence, Job
from tests.faults.findings import Finding, Kind
from tests.faults.steps import judge_steps
from workers.control.names import parse_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the oracle is asked to judge.

    ``accepted`` maps idempotency keys to the jobs that the service answered with. ``deleted`` are jobs
    whose deletion was asked for, whether or not an answer came. ``names`` are the living actors.
    ``has_lost_all``: all workers of a job were killed at once on purpose, so that what nobody had told
    or noted may be missing, and steps since the checkpoint are repeated.
    """

    evidence: Evidence
    notes: Sequence[Note] = ()
    accepted: Mapping[str, str] = field(default_factory=dict)
    deleted: Collection[str] = ()
    names: Collection[str] = ()
    has_lost_all: bool = False


def judge(case: Case) -> list[Finding]:
    """All broken promises; an empty list is what every fault test must end with."""
    return [*_kept(case), *_left(case), *(f for job in case.evidence.jobs.values() for f in _of_job(case, job))]


def _of_job(case: Case, job: Job) -> Iterator[Finding]:
    notes = by_job(case.notes).get(job.id, [])
    yield from judge_events(job)
    yield from judge_timeline(job)
    yield from judge_checkpoints(job)
    if notes:
        yield from judge_points(job, notes, has_lost_all=case.has_lost_all)
        yield from judge_steps(job, notes, has_lost_all=case.has_lost_all)


def _kept(case: Case) -> Iterator[Finding]:
    """Every accepted job is there, or was deleted; one key, or one nominal time, made one job."""
    jobs, keys, scheduled = case.evidence.jobs, case.evidence.keys, case.evidence.scheduled
    for key, job_id in case.accepted.items():
        if job_id not in jobs and job_id not in case.deleted:
            yield Finding(Kind.LOST, job_id, f"accepted under key {key!r}, it is not in the database")
        if keys.get(key, job_id) != job_id:
            yield Finding(Kind.TWICE_MADE, job_id, f"key {key!r} was answered with it, and stands for {keys[key]}")
    for job_id, count in Counter(keys.values()).items():
        if count > 1:
            yield Finding(Kind.TWICE_MADE, job_id, f"{count} keys stand for it")
    if case.accepted:
        for job_id in sorted(set(jobs) - set(keys.values()) - scheduled):
            yield Finding(Kind.TWICE_MADE, job_id, "no key and no nominal time stands for it")
    for job_id in sorted(scheduled - set(jobs) - set(case.deleted)):
        yield Finding(Kind.LOST, job_id, "a schedule started it, it is not in the database")


def _left(case: Case) -> Iterator[Finding]:
    """Actors belong to the attempt under way of a placed job, folders to a job."""
    jobs = case.evidence.jobs
    for name in sorted(case.names):
        parsed = parse_name(name)
        job = jobs.get(parsed.key.job_id) if parsed else None
        is_owned = job is not None and parsed is not None and job.attempt == parsed.key.attempt
        if job is None or not is_owned or JobState(job.state) not in PLACED_STATES:
            seen = f"{job.state} in attempt {job.attempt}" if job else "gone"
            yield Finding(Kind.LEFT, name, f"the actor lives, its job is {seen}")
    for folder in sorted(case.evidence.folders - set(jobs)):
        yield Finding(Kind.LEFT, folder, "the folder in storage belongs to no job")
