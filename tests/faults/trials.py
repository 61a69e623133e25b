"""The books of the sweeps: every trial has a job of its own, every job of a sweep has its trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from service.states import ENDED_STATES, JobState
from service.sweep_records import ENDED_SWEEPS
from tests.faults.evidence import Evidence, Sweep, Trial
from tests.faults.findings import Finding, Kind
from tuning.trial import TrialState
from workers.assignment import SWEEP_LABEL

ENDS = {TrialState.COMPLETE: JobState.SUCCEEDED, TrialState.PRUNED: JobState.CANCELLED}


def judge_sweeps(evidence: Evidence, deleted: Collection[str] = ()) -> Iterator[Finding]:
    """Numbers without a gap, no point twice, no more than allowed; a sweep that is over has nothing that goes on.

    ``deleted`` are jobs whose deletion was asked for: what has ended may lack them.
    """
    for sweep in evidence.sweeps.values():
        yield from _judge(sweep, evidence, deleted)
    named = {trial.job_id for sweep in evidence.sweeps.values() for trial in sweep.trials}
    for job in evidence.jobs.values():
        sweep_id = job.spec.get("labels", {}).get(SWEEP_LABEL)
        if sweep_id is not None and job.id not in named:
            yield Finding(Kind.TWICE_MADE, job.id, f"no trial of {sweep_id} has this job")
    yield from _judge_runs(evidence, deleted)


def _judge(sweep: Sweep, evidence: Evidence, deleted: Collection[str]) -> Iterator[Finding]:
    numbers = [trial.number for trial in sweep.trials]
    if numbers != list(range(len(numbers))) or len(numbers) > sweep.num_trials:
        yield Finding(Kind.SWEEP, sweep.id, f"its trials are {numbers}, it may have {sweep.num_trials}")
    for told, counts in (("point", Counter(t.point for t in sweep.trials)), ("job", Counter(_jobs(sweep)))):
        for twice in [value for value, count in counts.items() if count > 1]:
            yield Finding(Kind.TWICE_MADE, sweep.id, f"two trials of one {told}: {twice}")
    for trial in sweep.trials:
        if trial.is_open or trial.job_id not in deleted:
            yield from _judge_trial(sweep, trial, evidence)


def _judge_runs(evidence: Evidence, deleted: Collection[str]) -> Iterator[Finding]:
    """Every run of a promotion has a job of its own that ended with it, every job of a promotion is one of its runs."""
    for sweep in evidence.sweeps.values():
        for run in sweep.runs:
            name, job = f"{sweep.id}/{run.number}/{run.contender}/{run.pair}", evidence.jobs.get(run.job_id)
            if job is None and not run.is_open and run.job_id in deleted:
                continue
            if job is None:
                yield Finding(Kind.LOST, name, f"its job {run.job_id} is not in the database")
            elif job.state in ENDED_STATES and run.is_open and run.state != "RUNNING":
                yield Finding(Kind.SWEEP, name, f"it is open, its job is {job.state}, the promotion {run.state}")
            elif job.state not in ENDED_STATES and not run.is_open:
                yield Finding(Kind.SWEEP, name, f"it has ended, its job is {job.state}")
    named = Counter(run.job_id for sweep in evidence.sweeps.values() for run in sweep.runs)
    for job in evidence.jobs.values():
        if "promotion" in job.spec.get("labels", {}) and named[job.id] != 1:
            yield Finding(Kind.TWICE_MADE, job.id, f"{named[job.id]} runs of promotions have this job")


def _jobs(sweep: Sweep) -> list[str]:
    return [trial.job_id for trial in sweep.trials]


def _judge_trial(sweep: Sweep, trial: Trial, evidence: Evidence) -> Iterator[Finding]:
    name = f"{sweep.id}/{trial.number}"
    job = evidence.jobs.get(trial.job_id)
    if job is None:
        yield Finding(Kind.LOST, name, f"its job {trial.job_id} is not in the database")
        return
    if trial.is_open and sweep.state in ENDED_SWEEPS:
        yield Finding(Kind.SWEEP, name, f"it is {trial.state}, the sweep is {sweep.state}")
    if not trial.is_open and job.state not in ENDED_STATES:
        yield Finding(Kind.SWEEP, name, f"it is {trial.state}, its job is {job.state}")
    if job.state != ENDS.get(TrialState(trial.state), job.state):
        yield Finding(Kind.SWEEP, name, f"it is {trial.state}, its job is {job.state}")
