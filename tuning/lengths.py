"""On how many samples the trials of a sweep train. Pure."""

from __future__ import annotations

from tuning.paths import applied, found
from tuning.space import space_of
from tuning.spec import SweepSpec
from workers.spec import parse_job_spec

_PATHS = ("samples", "steps", "epochs", "batch.global_size")


def total_range(spec: SweepSpec, samples_per_epoch: int | None) -> tuple[int, int] | None:
    """The fewest and the most samples of a trial; None where epochs count and their size is not known."""
    totals: dict[tuple[object, ...], int] = {}
    for corner in space_of(spec.space).corners():
        job = applied(spec.job, corner)
        of = tuple(found(job, path)[1] for path in _PATHS)
        if of in totals:
            continue
        parsed = parse_job_spec({**job, "name": "trial"})
        if parsed.epochs is not None and samples_per_epoch is None:
            return None
        totals[of] = parsed.total_samples(samples_per_epoch or 1)
    return min(totals.values()), max(totals.values())
