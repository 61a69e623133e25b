"""Whether what the service wrote down of a job is consistent in itself, and with what the workers noted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from service.states import ENDED_STATES, PLACED_STATES, JobState, is_allowed
from tests.faults.diary import Note
from tests.faults.evidence import Event, Job, PointKey
from tests.faults.findings import Finding, Kind
from tests.faults.steps import final_generations, lives_of
from tests.faults.tuned import judge_samples


def judge_events(job: Job) -> Iterator[Finding]:
    """The events are one unbroken chain of legal transitions from QUEUED to the job's state."""

    def wrong(detail: str) -> Finding:
        return Finding(Kind.STATE, job.id, detail)

    events = job.events
    if not events or (events[0].source, events[0].target) != (None, JobState.QUEUED):
        yield wrong(f"its first event is {events[0] if events else 'missing'}")
        return
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        yield wrong(f"its events are numbered {[event.seq for event in events]}")
    for before, after in pairwise(events):
        if after.source != before.target:
            yield wrong(f"event {after.seq} leaves {after.source}, it was {before.target}")
        if not is_allowed(JobState(str(after.source)), JobState(after.target)):
            yield wrong(f"event {after.seq} goes from {after.source} to {after.target}")
        if after.attempt != before.attempt + (after.target == JobState.STARTING):
            yield wrong(f"event {after.seq} to {after.target} is of attempt {after.attempt} after {before.attempt}")
    yield from (wrong(detail) for detail in _against_row(job, events[-1]))


def _against_row(job: Job, last: Event) -> Iterator[str]:
    if (last.target, last.attempt) != (job.state, job.attempt):
        yield f"it is {job.state} in attempt {job.attempt}, its last event {last.target} in {last.attempt}"
    if JobState(job.state) not in PLACED_STATES and job.num_current:
        yield f"it is {job.state} with {job.num_current} workers"


def judge_points(job: Job, notes: Sequence[Note], lost: Collection[tuple[int, int]]) -> Iterator[Finding]:
    """One point a step along the newest lineages, none missing before the last, none of an older group.

    A round that was skipped has a point besides, and brings its job to an end one step earlier.

    What nobody had told when all workers of a ``lost`` lineage died, or were stopped by a cancel, is told by nobody:
    storage may hold a checkpoint of a later step than the store's last point.
    """
    visible = visible_points(job.points)
    updates = [point for point in visible if not point.is_skipped]
    many = [step for step, count in Counter(point.step for point in updates).items() if count > 1]
    if many:
        yield Finding(Kind.POINT, job.id, f"steps {many[:10]} have several points")
    if job.is_tuned:
        yield from judge_samples(job, visible, lost)
        return
    places = [((0, 0), 0), *(((point.attempt, point.lineage), point.step) for point in visible)]
    for (before, step), (after, following) in pairwise(places):
        is_untold = _was_cancelled(job, before[0], after[0]) or any(before <= life < after for life in lost)
        if following > step + 1 and not is_untold:
            yield Finding(Kind.POINT, job.id, f"steps {step + 1} to {following - 1} have no point")
    ((attempt, _), step), last = places[-1], job.steps - (len(visible) - len(updates))
    if job.state == JobState.SUCCEEDED and step != last and not _was_cancelled(job, attempt, job.attempt):
        yield Finding(Kind.POINT, job.id, f"the last point is of step {step} of {last}")
    for life, noted in lives_of(notes).items():
        generations = final_generations(noted)
        for point in updates:
            known = generations.get(point.step)
            if (point.attempt, point.lineage) == life and known is not None and known != point.generation:
                detail = f"the point of step {point.step} is of generation {point.generation}, it was done by {known}"
                yield Finding(Kind.POINT, job.id, detail)


def _was_cancelled(job: Job, first: int, following: int) -> bool:
    """Whether one of the attempts from ``first`` on, before ``following``, was stopped without saving or telling."""
    ends = [job.end_of(attempt) for attempt in range(max(first, 1), following)]
    return any(end is not None and end.target == JobState.CANCELLED for end in ends)


def visible_points(points: Sequence[PointKey]) -> list[PointKey]:
    """Points that no later lineage has replaced, by round."""
    found: list[PointKey] = []
    lives: dict[tuple[int, int], list[PointKey]] = {}
    for point in points:
        lives.setdefault((point.attempt, point.lineage), []).append(point)
    for _, life in sorted(lives.items()):
        first = min(point.round for point in life)
        found = [point for point in found if point.round < first] + sorted(life, key=lambda p: p.round)
    return found


def judge_timeline(job: Job) -> Iterator[Finding]:
    """Rows are numbered without a gap, no key comes twice in an attempt, and no step was lost while one lived."""
    seqs = [row.seq for row in job.timeline]
    if seqs != list(range(1, len(seqs) + 1)):
        yield Finding(Kind.TIMELINE, job.id, f"its rows are numbered {seqs}")
    keys = Counter((row.attempt, row.key) for row in job.timeline)
    for key, count in keys.items():
        if count > 1:
            yield Finding(Kind.TIMELINE, job.id, f"row {key} is there {count} times")
    for row in job.timeline:
        if row.kind in ("worker_lost", "controller_lost", "resize", "worker_joined") and row.steps_lost:
            yield Finding(Kind.TIMELINE, job.id, f"{row.kind} lost {row.steps_lost} steps")


def judge_checkpoints(job: Job) -> Iterator[Finding]:
    """For a job that rests, the registered checkpoints are exactly the complete ones in storage."""
    if JobState(job.state) in ENDED_STATES | {JobState.PAUSED} and job.checkpoints != job.stored:
        registered, stored = sorted(job.checkpoints - job.stored), sorted(job.stored - job.checkpoints)
        yield Finding(Kind.CHECKPOINT, job.id, f"registered only: {registered}, in storage only: {stored}")
