"""Seconds between two looks at a job by a clock that nobody sets: the machine's own may jump by a day."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from service.records import JobRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One stored look: what its row says of the time (Unix seconds), and what the monotonic clock said."""

    observed_at: float
    monotonic_s: float


class Looks:
    """The last look that this process stored, of each job that it follows; lost with the process."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._last: dict[str, Look] = {}

    def look(self, now_s: float) -> Look:
        """Now; to be noted once it is known to be stored."""
        return Look(observed_at=now_s, monotonic_s=self._monotonic_s())

    def passed_s(self, job: JobRow, now: Look) -> float | None:
        """Since the look that the row holds; None unless this process stored that one, and knows that it did."""
        last = self._last.get(job.id)
        if last is None or last.observed_at != job.observed_at:
            return None
        return now.monotonic_s - last.monotonic_s

    def note(self, job_id: str, look: Look | None) -> None:
        """This look is stored; None: the job is followed no longer."""
        if look is None:
            self._last.pop(job_id, None)
        else:
            self._last[job_id] = look
