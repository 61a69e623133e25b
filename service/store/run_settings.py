"""Orders to a job that runs beyond its spec, in the caller's transaction."""

from __future__ import annotations

from dataclasses import asdict, replace

from service.records import JobRow
from service.store.database import Write
from service.store.moves import update_guarded
from service.store.rows import dumps
from workers.run_settings import RunSettings


def order_settings(write: Write, job: JobRow, wanted: RunSettings) -> JobRow:
    """Make ``wanted`` the newest order of a job, under the number that follows its last one's.

    Raises StaleRowError.
    """
    numbered = replace(wanted, n=job.settings.n + 1 if job.settings else 1)
    return update_guarded(write, job, {"settings": dumps(asdict(numbered))})


def order_line(write: Write, job: JobRow, until: int | None) -> JobRow:
    """Let a job stand still after so many samples, until the line is moved; None lets it train to its end.

    Raises StaleRowError.
    """
    return job if job.is_ended or job.until == until else update_guarded(write, job, {"until": until})
