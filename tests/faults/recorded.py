"""The record of one job of six steps as the oracle reads it, for tests of the oracle: clean, and to be spoilt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.faults.diary import Note, Saved
from tests.faults.evidence import Event, Evidence, Job, PointKey, Row
from tests.faults.findings import Kind
from tests.faults.oracle import Case, judge
from workers.checkpoints import checkpoint_name

BATCH, STEPS = 4, 6
LAST = checkpoint_name(1, 1, STEPS, 1)


def note(step: int, worker: str = "1.0", ids: tuple[int, ...] | None = None, **changes: object) -> Note:
    first = (step - 1) * BATCH % 12
    made = Note(
        job="job_1",
        attempt=1,
        worker=worker,
        lineage=1,
        generation=1,
        step=step,
        pid=7,
        time=float(step),
        ids=tuple(range(first, first + BATCH)) if ids is None else ids,
    )
    return replace(made, **changes)


def pair(step: int, **changes: object) -> list[Note]:
    """A step of two workers."""
    first = (step - 1) * BATCH % 12
    return [
        note(step, "1.0", (first, first + 1), **changes),
        note(step, "1.1", (first + 2, first + 3), **changes),
    ]


def chain(*targets: str, attempts: tuple[int, ...] = (0, 1, 1, 1)) -> tuple[Event, ...]:
    sources = (None, *targets)
    return tuple(
        Event(seq=n, attempt=attempts[n - 1], source=sources[n - 1], target=target, reason=None)
        for n, target in enumerate(targets, 1)
    )


def point(number: int, **changes: Any) -> PointKey:
    return replace(PointKey(attempt=1, lineage=1, generation=1, round=number, step=number), **changes)


JOB = Job(
    id="job_1",
    spec={"steps": STEPS, "batch": {"global_size": BATCH}, "config": {"num_samples": 12}},
    state="SUCCEEDED",
    attempt=1,
    term=1,
    restart_after=0,
    num_current=0,
    events=chain("QUEUED", "STARTING", "RUNNING", "SUCCEEDED"),
    points=tuple(point(step) for step in range(1, STEPS + 1)),
    timeline=(Row(seq=1, attempt=1, key="start", kind="start", steps_lost=None),),
    checkpoints=frozenset({LAST}),
    stored=frozenset({LAST}),
)
NOTES = [note(step) for step in range(1, STEPS + 1)]


def case(job: Job = JOB, notes: list[Note] = NOTES, **changes: object) -> Case:
    evidence = Evidence(installation="i", fence=1, jobs={job.id: job}, keys={"k": job.id}, folders=frozenset({job.id}))
    return replace(Case(evidence=evidence, notes=notes, accepted={"k": job.id}), **changes)


def kinds(case: Case) -> set[Kind]:
    return {finding.kind for finding in judge(case)}


def saved(step: int, *, time: float | None = None, **changes: Any) -> Saved:
    """By the last moment of that step."""
    made = Saved(job="job_1", attempt=1, lineage=1, generation=1, saved=step, time=step + 0.5 if time is None else time)
    return replace(made, **changes)
