"""On how many samples the trials of a sweep train. Pure."""

from __future__ import annotations

from tuning.paths import applied, found
from tuning.space import space_of
from tuning.spec import SweepSpec
from workers.lr import LrRule
from workers.spec import JobSpec, parse_job_spec
from workers.spec_parts import UNBOUNDED

_BATCH = ("batch.global_size", "batch.max_global_size", "batch.adapt", "batch.lr_rule", "optimizer.base_batch")
_PATHS = ("samples", "steps", "epochs", *_BATCH)


def total_range(spec: SweepSpec, samples_per_epoch: int | None) -> tuple[int, int] | None:
    """The fewest and the most samples that count of a trial; None where epochs count and their size is not known."""
    jobs = _jobs(spec, samples_per_epoch)
    if jobs is None:
        return None
    totals = [job.total_samples(samples_per_epoch or 1) for job in jobs]
    return min(totals), max(totals)


def drawn_range(spec: SweepSpec, samples_per_epoch: int | None) -> tuple[int, int] | None:
    """The same of samples that are drawn: more, where a large batch is worth less than its samples (``adascale``)."""
    jobs = _jobs(spec, samples_per_epoch)
    if jobs is None:
        return None
    totals = [(job.total_samples(samples_per_epoch or 1), most_drawn_of_one(job)) for job in jobs]
    return min(total for total, _ in totals), max(round(total * drawn) for total, drawn in totals)


def most_drawn_of_one(job: JobSpec) -> float:
    """So many samples at most are drawn for one that counts: those beyond ``base_batch`` may be worth nothing."""
    batch = job.batch
    if batch.lr_rule is not LrRule.ADASCALE:
        return 1.0
    largest = batch.global_size
    if batch.adapt == "goodput":
        largest = batch.max_global_size or UNBOUNDED * batch.global_size
    return max(1.0, largest / job.optimizer.base_batch)


def _jobs(spec: SweepSpec, samples_per_epoch: int | None) -> list[JobSpec] | None:
    """A job for each way in which the lengths of trials differ; None where some are of unknown length."""
    found_jobs: dict[str, JobSpec] = {}
    for corner in space_of(spec.space).corners():
        job = applied(spec.job, corner)
        of = repr([found(job, path)[1] for path in _PATHS])
        if of in found_jobs:
            continue
        found_jobs[of] = parse_job_spec({**job, "name": "trial"})
        if found_jobs[of].epochs is not None and samples_per_epoch is None:
            return None
    return list(found_jobs.values())
