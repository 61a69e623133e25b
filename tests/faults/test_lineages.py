"""What the oracle says of lineages: each goes on from what was done, or from the newest whole checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.faults.diary import Note
from tests.faults.evidence import Job, Row
from tests.faults.findings import Kind
from tests.faults.lineages import judge_lineages
from tests.faults.oracle import judge
from tests.faults.recorded import JOB, NOTES, STEPS, case, chain, kinds, note, point, saved
from workers.checkpoints import checkpoint_name


def restored(first: int, worker: str = "1.5", **changes: Any) -> tuple[Job, list[Note]]:
    """After four steps another lineage goes on from a step, and all is told."""
    life: dict[str, Any] = {"lineage": 2, **changes}
    again = [note(s, worker, time=10.0 + s, **life) for s in range(first, STEPS + 1)]
    points = tuple(point(s, **(life if s >= first else {})) for s in range(1, STEPS + 1))
    last = checkpoint_name(life.get("attempt", 1), life["lineage"], STEPS, 1)
    job = replace(JOB, points=points, checkpoints=frozenset({last}), stored=frozenset({last}))
    return job, [*NOTES[:4], *again]


def repeating(job: Job, told: int | None = 2) -> Job:
    """The store had points of all four steps, of which two are done again."""
    row = Row(seq=1, attempt=job.points[-1].attempt, key="plan/1/2", kind="restore", steps_lost=told)
    return replace(job, points=tuple(point(n) for n in (1, 2, 3, 4)) + job.points[2:], timeline=(row,))


def test_a_restore_after_the_loss_of_all_may_repeat_and_a_shared_worker_gives_it_away() -> None:
    lost = {"lost": {JOB.id: 1}}
    assert judge(case(*restored(3), saves=[saved(2)], **lost)) == []
    assert kinds(case(*restored(3, worker="1.0"), saves=[saved(2)], **lost)) == {Kind.STEP}


@pytest.mark.parametrize("first", [1, 3, 5])
def test_a_lineage_that_begins_though_nobody_lost_all_workers_is_found(first: int) -> None:
    assert kinds(case(*restored(first), saves=[saved(first - 1)] if first > 1 else [])) == {Kind.STEP}
    assert kinds(case(*restored(first), lost={"job_2": 1})) == {Kind.STEP}
    assert judge(case(*restored(first), lost={JOB.id: 1})) == []


def test_a_second_loss_where_one_was_brought_about_is_found() -> None:
    job, notes = restored(3)
    again = [replace(note, lineage=3, worker="1.6", time=note.time + 10) for note in notes if note.step == STEPS]
    points = (*job.points[:-1], replace(job.points[-1], lineage=3))
    job = replace(job, points=points)
    assert kinds(case(job, [*notes, *again], lost={JOB.id: 1})) == {Kind.STEP}
    assert judge(case(job, [*notes, *again], lost={JOB.id: 2})) == []


def test_a_lineage_from_another_checkpoint_than_the_newest_whole_one_is_found() -> None:
    """Whether a worker noted it, or only its name was kept; what became whole later does not count."""
    lost = {"lost": {JOB.id: 1}}
    assert kinds(case(*restored(3), saves=[saved(2), saved(4)], **lost)) == {Kind.STEP}
    assert kinds(case(*restored(1), saves=[saved(2)], **lost)) == {Kind.STEP}
    assert judge(case(*restored(3), saves=[saved(2), saved(4, time=14.0)], **lost)) == []
    job, notes = restored(3)
    older, newer = (frozenset({*job.stored, checkpoint_name(1, 1, n, 1)}) for n in (2, 4))
    job = repeating(job)
    assert judge(case(replace(job, stored=older, checkpoints=older), notes, **lost)) == []
    assert kinds(case(replace(job, stored=newer, checkpoints=newer), notes, **lost)) == {Kind.STEP}


def test_of_a_job_without_a_diary_the_points_tell_what_a_lineage_repeats() -> None:
    job, _ = restored(3)
    whole = frozenset({*job.stored, checkpoint_name(1, 1, 4, 1)})
    job = repeating(job)
    assert judge(case(job, [], lost={JOB.id: 1})) == []
    assert kinds(case(job, [])) == {Kind.STEP}
    assert kinds(case(replace(job, stored=whole, checkpoints=whole), [], lost={JOB.id: 1})) == {Kind.STEP}


@pytest.mark.parametrize("told", [None, 0, 1])
def test_steps_that_are_done_again_and_not_told_as_lost_are_found(told: int | None) -> None:
    lost = {"lost": {JOB.id: 1}}
    job, notes = restored(3)
    assert judge(case(repeating(job), notes, saves=[saved(2)], **lost)) == []
    assert kinds(case(repeating(job, told), notes, saves=[saved(2)], **lost)) == {Kind.TIMELINE}


def test_only_the_lineage_that_was_lost_may_end_untold() -> None:
    job, notes = restored(5)
    untold = tuple(p for p in job.points if p.step != 4)
    assert judge(case(replace(job, points=untold), notes, lost={JOB.id: 1})) == []
    for missing in (2, 6):
        spoilt = tuple(p for p in job.points if p.step != missing)
        assert kinds(case(replace(job, points=spoilt), notes, lost={JOB.id: 1})) == {Kind.POINT}
    cut = [replace(n, ids=n.ids[:2]) if n.step == STEPS else n for n in notes]
    assert kinds(case(job, cut, lost={JOB.id: 1})) == {Kind.SAMPLE}


def test_a_cluster_that_is_lost_by_itself_is_found_and_one_that_was_killed_costs_what_was_not_saved() -> None:
    states = ("QUEUED", "STARTING", "RUNNING", "RECOVERING", "QUEUED", "STARTING", "RUNNING", "SUCCEEDED")
    events = chain(*states, attempts=(0, 1, 1, 1, 1, 2, 2, 2))
    events = tuple(replace(e, reason="CLUSTER_LOST" if e.seq == 5 else None) for e in events)
    for first in (1, 3, 5):
        job, notes = restored(first, attempt=2, lineage=1)
        job = replace(job, attempt=2, events=events)
        assert kinds(case(job, notes)) == {Kind.STEP}
        assert judge(case(job, notes, saves=[saved(first - 1)], lost={JOB.id: 1})) == []
        if first < 5:
            assert kinds(case(job, notes, saves=[saved(first)], lost={JOB.id: 1})) == {Kind.STEP}


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_job_that_was_cancelled_while_it_was_paused_may_begin_anew_and_so_again(is_cancelled: bool) -> None:
    """The second time hides the first from the row."""
    begun = ("STARTING", "RUNNING", "PAUSING", "PAUSED")
    retried = ("CANCELLED", "QUEUED") if is_cancelled else ("QUEUED",)
    again = ("STARTING", "RUNNING", "CANCELLING", "CANCELLED", "QUEUED", "STARTING", "RUNNING", "SUCCEEDED")
    numbers = (0, *(1 for _ in (*begun, *retried)), 2, 2, 2, 2, 2, 3, 3, 3)
    job = replace(JOB, restart_after=2, attempt=3, events=chain("QUEUED", *begun, *retried, *again, attempts=numbers))
    job = replace(job, points=(), checkpoints=frozenset(), stored=frozenset())
    notes = [*NOTES[:4], *(note(s, "2.0", attempt=2, time=10.0 + s) for s in (1, 2))]
    notes += [note(s, "3.0", attempt=3, time=20.0 + s) for s in range(1, STEPS + 1)]
    found = judge_lineages(job, notes, [saved(4)], 0).findings
    assert {finding.kind for finding in found} == (set() if is_cancelled else {Kind.STEP})


def test_of_a_job_whose_batch_was_changed_every_sample_is_followed() -> None:
    """Steps of four samples, then of eight."""
    spec = {k: v for k, v in JOB.spec.items() if k != "steps"}
    sizes = (4, 4, 8, 8)
    begins = [sum(sizes[:n]) for n in range(len(sizes))]
    points = tuple(
        point(n, cursor=begin + size, samples=size)
        for n, (begin, size) in enumerate(zip(begins, sizes, strict=True), 1)
    )
    notes = [note(p.step, ids=tuple(i % 12 for i in range(p.cursor - p.samples, p.cursor))) for p in points]
    job = replace(JOB, spec=spec, points=points, total_samples=24)
    assert judge(case(job, notes)) == []
    spoilt = [*notes[:2], replace(notes[2], ids=notes[3].ids), notes[3]]
    assert kinds(case(job, spoilt)) == {Kind.SAMPLE}
