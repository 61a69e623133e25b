"""Whether each lineage of a job goes on from where the spine says: what was done, or the newest whole checkpoint.

While one worker lives no lineage begins, so nothing is repeated. A test that kills all workers of a job at once,
or their cluster, says how often; then, and after a cancel, a lineage begins right after the newest checkpoint
that was whole when it began, as workers noted it, or as store and storage still have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from service.states import JobState
from tests.faults.diary import Note, Saved
from tests.faults.evidence import Job
from tests.faults.findings import Finding, Kind
from workers.errors import Reason

LifeKey = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The steps of a lineage from ``first`` to ``last``; where workers noted them, when it ``began`` and who they were.

    ``is_noted``: else the steps are those that the store was told of.
    """

    life: LifeKey
    first: int
    last: int
    began: float = 0.0
    workers: frozenset[str] = frozenset()
    is_noted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Follows:
    """What is wrong with a job's lineages, and those that ended with the ``loss`` of all workers, as was intended."""

    findings: list[Finding] = field(default_factory=list)
    lost: set[LifeKey] = field(default_factory=set)


def judge_lineages(job: Job, notes: Sequence[Note], saves: Sequence[Saved], num_lost: int) -> Follows:
    """``num_lost``: how often all its workers, or their cluster, were killed at once. ``notes``, ``saves``: its own."""
    follows = Follows()
    spans = _noted(notes) or _told(job)
    for old, new in pairwise(spans):
        if new.life in job.taken_over:
            continue  # the same workers gave theirs up for the state of another job
        if _is_loss(job, old, new):
            follows.lost.add(old.life)
        follows.findings.extend(Finding(Kind.STEP, job.id, detail) for detail in _wrong(job, old, new, saves))
    if len(follows.lost) > num_lost:
        told = f"all workers of the lineages {sorted(follows.lost)} were lost, such losses brought about: {num_lost}"
        follows.findings.append(Finding(Kind.STEP, job.id, told))
    return follows


def judge_losses(job: Job) -> Iterator[Finding]:
    """What an attempt did again its timeline tells as lost, at least as far as the store knew of it."""
    again: Counter[int] = Counter()
    for old, new in pairwise(_lives(job)):
        is_anew = new.first == 1 and _may_be_anew(job, old, new)
        if new.life not in job.taken_over and not is_anew:
            again[new.life[0]] += max(0, old.last - new.first + 1)
    for attempt, num_again in again.items():
        told = sum(row.steps_lost or 0 for row in job.timeline if row.attempt == attempt)
        if told < num_again:
            detail = f"attempt {attempt} did {num_again} steps again, its timeline tells of {told}"
            yield Finding(Kind.TIMELINE, job.id, detail)


def _lives(job: Job) -> list[Span]:
    """The rounds of each lineage, as the store was told of them."""
    rounds: dict[LifeKey, list[int]] = {}
    for point in job.points:
        rounds.setdefault((point.attempt, point.lineage), []).append(point.round)
    return [Span(life=life, first=min(found), last=max(found)) for life, found in sorted(rounds.items())]


def _wrong(job: Job, old: Span, new: Span, saves: Sequence[Saved]) -> Iterator[str]:
    if both := sorted(old.workers & new.workers) if old.life[0] == new.life[0] else []:
        yield f"lineage {new.life} began although {', '.join(both)} of {old.life} lived"
    if new.is_noted and new.first > old.last + 1:
        yield f"lineage {new.life} begins with step {new.first}, {old.life} ended with {old.last}"
    saved = _newest(job, new, saves)
    if new.first <= saved and not (new.first == 1 and _may_be_anew(job, old, new)):
        yield f"lineage {new.life} begins with step {new.first}, a checkpoint of step {saved} was whole by then"


def _is_loss(job: Job, old: Span, new: Span) -> bool:
    """Whether a lineage ended neither by its goal, nor by a cancel, with all that it had done saved."""
    if old.life[0] == new.life[0]:
        return True
    end = job.end_of(old.life[0])
    if end is None or end.reason == Reason.CLUSTER_LOST:
        return True
    return end.target != JobState.CANCELLED and new.first != old.last + 1 and not _may_be_anew(job, old, new)


def _may_be_anew(job: Job, old: Span, new: Span) -> bool:
    """Whether a retry from the start lies between them; of all of those only the last is known."""
    if old.life[0] <= job.restart_after < new.life[0]:
        return True
    # One that was paused may have been cancelled later, while it stood.
    could_be_retried = any(
        event.attempt == old.life[0] and event.target in (JobState.CANCELLED, JobState.FAILED) for event in job.events
    )
    return new.life[0] <= job.restart_after and could_be_retried


def _newest(job: Job, new: Span, saves: Sequence[Saved]) -> int:
    """The step of the newest checkpoint that was whole when a lineage began, 0 where there was none."""
    noted = [(save.life, save.saved) for save in saves if save.life < new.life and save.time <= new.began]
    kept = [(life, step) for life, step in job.kept if life < new.life]
    floor = job.restart_after if job.restart_after < new.life[0] else 0
    return max(((life, step) for life, step in (*noted, *kept) if life[0] > floor), default=((0, 0), 0))[1]


def _noted(notes: Sequence[Note]) -> list[Span]:
    lives: dict[LifeKey, list[Note]] = {}
    for note in notes:
        lives.setdefault(note.life, []).append(note)
    return [
        Span(
            life=life,
            first=min(note.step for note in found),
            last=max(note.step for note in found),
            began=min(note.time for note in found),
            workers=frozenset(note.worker for note in found),
            is_noted=True,
        )
        for life, found in sorted(lives.items())
    ]


def _told(job: Job) -> list[Span]:
    lives: dict[LifeKey, list[int]] = {}
    for point in job.points:
        if not point.is_skipped:
            lives.setdefault((point.attempt, point.lineage), []).append(point.step)
    return [Span(life=life, first=min(steps), last=max(steps)) for life, steps in sorted(lives.items())]
