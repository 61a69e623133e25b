"""What the job of a trial says of the trial, and what it is to be told. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from service.states import JobState, Verb
from service.sweep_records import SweepState, TrialJob, TrialRow, Wish
from tuning.missed_metric import never_reported, not_evaluated
from tuning.trial import Report, TrialState
from workers.errors import Reason

MAX_REPORTS = 200
"""Of one trial: a metric that is reported at every step is thinned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """New values of the sweep's ``metric``, in order of samples, and the ``rungs`` at which its trials are compared.

    ``others`` are the keys of an evaluation that told no value of the metric, though it is one of evaluations; of a
    job that ended without any, all its keys.
    """

    metric: str
    reports: Sequence[Report] = ()
    rungs: Sequence[int] = ()
    others: Collection[str] = ()


def observed(trial: TrialRow, job: TrialJob | None, news: News) -> TrialRow:
    """The trial as its job shows it now."""
    if job is None:
        return _ended(trial, TrialState.FAILED, "its job was deleted")
    trial = replace(
        trial,
        reports=_thinned(trial.reports, news, job),
        seconds=job.worker_s,
        started_at=trial.started_at or job.started_at,
    )
    match job.state:
        case JobState.SUCCEEDED if not trial.reports:
            return _ended(trial, TrialState.FAILED, never_reported(news.metric, news.others), job.finished_at)
        case JobState.SUCCEEDED if not math.isfinite(trial.reports[-1].value):
            return _ended(trial, TrialState.PRUNED, f"its last {news.metric} is no number", job.finished_at)
        case JobState.SUCCEEDED:
            complete = _ended(trial, TrialState.COMPLETE, None, job.finished_at)
            return replace(complete, value=trial.reports[-1].value)
        case JobState.FAILED if job.reason is Reason.DIVERGED:
            bad = _ended(trial, TrialState.PRUNED, job.why or str(job.reason), job.finished_at)
            return replace(bad, reports=_diverged(trial.reports, job.samples))
        case JobState.FAILED:
            return _ended(trial, TrialState.FAILED, job.why or str(job.reason), job.finished_at)
        case JobState.CANCELLED if job.reason is Reason.CANCELLED_BY_SWEEP:
            return _ended(trial, TrialState.PRUNED, trial.reason or "the sweep ended", job.finished_at)
        case JobState.CANCELLED:
            return _ended(trial, TrialState.FAILED, "its job was cancelled", job.finished_at)
    if news.others and not trial.reports:
        return _ended(trial, TrialState.FAILED, not_evaluated(news.metric, news.others))
    return replace(trial, state=_open_state(trial, job))


def verb_for(trial: TrialRow, job: JobState, sweep: SweepState) -> Verb | None:
    """What the job of a trial is to be told now, None where it is as it should be or must settle first."""
    match _wished(trial, sweep):
        case Wish.PRUNE:
            is_over = job in (JobState.CANCELLING, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
            return None if is_over else Verb.CANCEL
        case Wish.HOLD:
            is_going = job in (JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.RECOVERING)
            return Verb.PAUSE if is_going else None
        case Wish.RUN:
            # Who paused a trial's job by hand resumes it by hand.
            return Verb.RESUME if job is JobState.PAUSED and trial.is_held else None


def _wished(trial: TrialRow, sweep: SweepState) -> Wish:
    if trial.is_ended:
        return Wish.PRUNE
    if sweep is SweepState.RUNNING:
        return trial.wish
    if sweep is SweepState.PAUSED:
        return Wish.PRUNE if trial.wish is Wish.PRUNE else Wish.HOLD
    return Wish.PRUNE


def _open_state(trial: TrialRow, job: TrialJob) -> TrialState:
    is_waiting = trial.wish is Wish.HOLD or job.state is JobState.PAUSED
    is_new = job.state in (JobState.QUEUED, JobState.STARTING) and job.started_at is None
    return TrialState.WAITING if is_waiting or is_new else TrialState.RUNNING


def _diverged(known: tuple[Report, ...], samples: int) -> tuple[Report, ...]:
    """Whatever it reported before, by now it is worth nothing: no failure, but a result that samplers learn from."""
    if known and not math.isfinite(known[-1].value):
        return known
    at = max(samples, known[-1].samples + 1 if known else 0)
    return (*known, Report(samples=at, value=math.nan))


def _thinned(known: tuple[Report, ...], news: News, job: TrialJob) -> tuple[Report, ...]:
    """What a restored job reports again is passed over; the last report is always kept, as the state of now.

    So is the first one at a rung or past it: a trial is judged by it, once, and others are held against it for ever.
    """
    gap = (job.total_samples or 0) / MAX_REPORTS
    kept = list(known)
    for report in news.reports:
        if kept and report.samples <= kept[-1].samples:
            continue
        if len(kept) > 1 and report.samples - kept[-2].samples < gap and not _has_crossed(kept, news.rungs):
            kept.pop()
        kept.append(report)
    return tuple(kept)


def _has_crossed(reports: Sequence[Report], rungs: Sequence[int]) -> bool:
    """Whether the last report is the first at some rung."""
    return any(reports[-2].samples < rung <= reports[-1].samples for rung in rungs)


def _ended(trial: TrialRow, state: TrialState, reason: str | None, at: float | None = None) -> TrialRow:
    return replace(trial, state=state, reason=reason, finished_at=at or trial.finished_at)
