"""The one judge of every fault test: reads what remains, and says which promises were broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from service.states import ENDED_STATES, JobState
from tests.faults.books import judge_checkpoints, judge_events, judge_points, judge_timeline
from tests.faults.diary import Note, Saved, by_job
from tests.faults.evidence import Evidence, Job
from tests.faults.findings import Finding, Kind
from tests.faults.lineages import judge_lineages, judge_losses
from tests.faults.remains import Remains, judge_remains
from tests.faults.steps import judge_notes, judge_steps
from tests.faults.trials import judge_sweeps


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the oracle is asked to judge.

    ``accepted`` maps idempotency keys to the jobs that the service answered with. ``deleted`` are jobs
    whose deletion was asked for, whether or not an answer came. ``remains`` is what the cluster still holds.
    ``saves`` are the checkpoints that workers noted. ``lost``: by job, how often all its workers were killed at once on
    purpose, or their cluster; then what nobody had told or noted may be missing, and steps since the newest whole
    checkpoint are repeated. Of any other job nothing is.
    """

    evidence: Evidence
    notes: Sequence[Note] = ()
    saves: Sequence[Saved] = ()
    accepted: Mapping[str, str] = field(default_factory=dict)
    deleted: Collection[str] = ()
    remains: Remains = field(default_factory=Remains)
    lost: Mapping[str, int] = field(default_factory=dict)


def judge(case: Case) -> list[Finding]:
    """All broken promises; an empty list is what every fault test must end with."""
    books = (f for job in case.evidence.jobs.values() for f in _of_job(case, job))
    left = {job_id: notes for job_id, notes in by_job(case.notes).items() if job_id not in case.evidence.jobs}
    steps = (f for job_id, notes in left.items() for f in judge_notes(job_id, notes))
    return [*steps, *_kept(case), *_left(case), *judge_sweeps(case.evidence, case.deleted), *books]


def _of_job(case: Case, job: Job) -> Iterator[Finding]:
    notes = by_job(case.notes).get(job.id, [])
    yield from judge_events(job)
    yield from judge_timeline(job)
    yield from judge_losses(job)
    yield from judge_checkpoints(job)
    saves = [save for save in case.saves if save.job == job.id]
    follows = judge_lineages(job, notes, saves, case.lost.get(job.id, 0))
    yield from follows.findings
    if notes or job.points:
        yield from judge_points(job, notes, follows.lost)
    if notes:
        yield from judge_steps(job, notes, follows.lost)


def _kept(case: Case) -> Iterator[Finding]:
    """Every accepted job or sweep is there, or was deleted; one key, or one nominal time, made one job."""
    evidence, keys, scheduled = case.evidence, case.evidence.keys, case.evidence.scheduled
    made = {*evidence.jobs, *evidence.sweeps}
    for key, job_id in case.accepted.items():
        if job_id not in made and job_id not in case.deleted:
            yield Finding(Kind.LOST, job_id, f"accepted under key {key!r}, it is not in the database")
        if keys.get(key, job_id) != job_id:
            yield Finding(Kind.TWICE_MADE, job_id, f"key {key!r} was answered with it, and stands for {keys[key]}")
    for job_id, count in Counter(keys.values()).items():
        if count > 1:
            yield Finding(Kind.TWICE_MADE, job_id, f"{count} keys stand for it")
    if case.accepted:
        trials = {part.job_id for sweep in evidence.sweeps.values() for part in (*sweep.trials, *sweep.runs)}
        for job_id in sorted(made - set(keys.values()) - scheduled - trials):
            yield Finding(Kind.TWICE_MADE, job_id, "no key and no nominal time stands for it")
    for job_id in sorted(scheduled - made - set(case.deleted)):
        yield Finding(Kind.LOST, job_id, "a schedule started it, it is not in the database")


def _left(case: Case) -> Iterator[Finding]:
    """What the cluster holds is a placed job's; folders are some job's; what rests has nothing half done."""
    jobs = case.evidence.jobs
    yield from judge_remains(case.remains, jobs)
    for folder in sorted(case.evidence.folders - set(jobs)):
        yield Finding(Kind.LEFT, folder, "the folder in storage belongs to no job")
    for place, names in case.evidence.scratch.items():
        for name in sorted(names - set(jobs)):
            yield Finding(Kind.LEFT, f"{place}/{name}", "the folder in scratch belongs to no job")
    for file in sorted(case.evidence.uploads):
        yield Finding(Kind.LEFT, file, "nobody receives this file any more")
    for job in jobs.values():
        if job.unfinished and JobState(job.state) in ENDED_STATES | {JobState.PAUSED}:
            yield Finding(Kind.LEFT, job.id, f"saves of it never ended: {sorted(job.unfinished)[:5]}")
    for job_id in sorted(case.evidence.half_deleted):
        yield Finding(Kind.LEFT, job_id, "its deletion was begun, and not brought to its end")
    for key in sorted(case.evidence.stray_bundles):
        yield Finding(Kind.LEFT, key, "no bundle and no upload has these bytes")
