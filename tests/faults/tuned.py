"""What holds for a job whose batch was changed, or that took another's state over: its samples are counted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tests.faults.evidence import Job, PointKey
from tests.faults.findings import Finding, Kind


def judge_samples(job: Job, visible: Sequence[PointKey], lost: Collection[tuple[int, int]]) -> Iterator[Finding]:
    """Along the newest lineages no sample is skipped or drawn twice, but where the timeline says whose state it took.

    There, and only there, the job goes on from so many samples as that had. After a ``lost`` lineage it may go on from
    more than was told of.
    """
    taken, cursor, life = job.taken_over, 0, (0, 0)
    for point in visible:
        begin, here = point.cursor - point.samples, (point.attempt, point.lineage)
        expected = taken[here] if here != life and here in taken else cursor
        is_untold = begin > expected and any(life <= one < here for one in lost)
        if begin != expected and not is_untold:
            where = f"step {point.step} of lineage {here}"
            yield Finding(Kind.SAMPLE, job.id, f"{where} begins at sample {begin}, not at {expected}")
        cursor, life = point.cursor, here
    if job.state == "SUCCEEDED" and job.total_samples != cursor:
        yield Finding(Kind.SAMPLE, job.id, f"it succeeded at sample {cursor} of {job.total_samples}")
