"""For whom an autoscaler had no nodes, and when it is asked for them again. Pure.

Ray tells nobody which kinds of nodes its autoscaler could start: that there is none large enough is only known
of what it was asked for in vain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.queue import Waiting
from service.room import EPSILON, KINDS, Amounts, Need

RETRY_S = 120.0
"""So long after a refusal it is asked again: nodes may have gone, or another kind may have been added."""

MOST_RETRY_S = 1920.0
"""Each further refusal doubles the wait, up to this: while a hopeless job is tried, nobody else is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A waiting job was asked for alone, and in vain; ``again_s`` is monotonic."""

    need: Need
    min: int
    wait_s: float
    again_s: float

    def covers(self, job: Waiting) -> bool:
        """Whether a job needs no less, so that it would fare no better."""
        return _is_no_less(job.need, job.min, self.need, self.min)


def noted(refusals: Iterable[Refusal], job: Waiting, now_s: float) -> tuple[Refusal, ...]:
    """With what was refused just now, in place of all that say the same of more or of fewer jobs."""
    known = list(refusals)
    wait_s = min(MOST_RETRY_S, max((2 * old.wait_s for old in known if old.covers(job)), default=RETRY_S))
    new = Refusal(need=job.need, min=job.min, wait_s=wait_s, again_s=now_s + wait_s)
    others = (old for old in known if not old.covers(job) and not _is_no_less(old.need, old.min, new.need, new.min))
    return (*others, new)


def without(refusals: Iterable[Refusal], granted: Sequence[Waiting]) -> tuple[Refusal, ...]:
    """Without those that no longer hold, since for these jobs nodes are coming."""
    return tuple(old for old in refusals if not any(old.covers(job) for job in granted))


def concerning(refusals: Iterable[Refusal], waiting: Sequence[Waiting]) -> tuple[Refusal, ...]:
    """Those that say something of a job that waits."""
    return tuple(old for old in refusals if any(old.covers(job) for job in waiting))


def refused(refusals: Sequence[Refusal], waiting: Iterable[Waiting], now_s: float) -> dict[str, bool]:
    """The jobs for which there were no nodes, by id, and whether it is time to ask again."""
    found = {}
    for job in waiting:
        of_it = [old for old in refusals if old.covers(job)]
        if of_it:
            found[job.job_id] = all(now_s >= old.again_s for old in of_it)
    return found


def _is_no_less(need: Need, count: int, other: Need, other_count: int) -> bool:
    """Whether it is, as both are asked for in a cluster with GPUs, and in one without."""
    pairs = zip(need.shapes, other.shapes, strict=True)
    return count >= other_count and all(_is_as_large(shape, other_shape) for shape, other_shape in pairs)


def _is_as_large(shape: Amounts, other: Amounts) -> bool:
    return all(shape.get(kind, 0.0) >= other.get(kind, 0.0) - EPSILON for kind in KINDS)
