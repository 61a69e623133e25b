"""The oracle itself: content with a clean record, and never silent about a broken promise."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.folders import BUNDLES, JOBS
from service.settings import load_settings
from service.states import JobState
from service.store.opening import Store
from tests.faults.diary import Note, line_of, read_diary, read_saves
from tests.faults.evidence import Evidence, Job, PromotionRun, Row, Sweep, Trial, gather
from tests.faults.findings import Kind
from tests.faults.oracle import Case, judge
from tests.faults.ray_remains import titled
from tests.faults.recorded import JOB, LAST, NOTES, STEPS, case, chain, kinds, note, pair, point, saved
from tests.faults.remains import Remains
from tests.service.conftest import database_url, postgres, store
from tests.service.given import checkpoint, leader, placed, record, row, snapshot
from tests.waiting import wait_for
from workers.checkpoints import checkpoint_name, draft_key, manifest_key
from workers.storage_urls import open_storage

__all__ = ["database_url", "postgres", "store"]


def test_a_clean_record_gives_no_finding() -> None:
    assert judge(case()) == []


def test_a_step_redone_for_a_member_that_died_with_it_is_allowed() -> None:
    died = [*pair(1), note(2, "1.1", (6, 7)), *(note(s, generation=2) for s in range(2, STEPS + 1))]
    points = tuple(point(s, generation=1 if s == 1 else 2) for s in range(1, STEPS + 1))
    assert judge(case(replace(JOB, points=points), died)) == []


def test_the_part_of_a_member_that_died_before_it_noted_its_last_step_may_be_missing() -> None:
    alone = [note(s, generation=2) for s in range(4, STEPS + 1)]
    points = tuple(point(s, generation=1 if s < 4 else 2) for s in range(1, STEPS + 1))
    died = [*pair(1), *pair(2), pair(3)[0], *alone]
    assert judge(case(replace(JOB, points=points), died)) == []
    lived = [*pair(1), *pair(2), pair(3)[0], *pair(4), *(n for s in range(5, STEPS + 1) for n in pair(s))]
    assert kinds(case(notes=lived)) == {Kind.SAMPLE}


def test_a_sample_is_missed_though_a_part_was_unnoted_before() -> None:
    """A member noted nothing of samples 6 and 7 of step 2 before it died; another stands in for 3 in step 4."""
    points = tuple(point(s, generation=1 if s < 3 else 2) for s in range(1, STEPS + 1))
    died = [*pair(1), pair(2)[0], *(note(s, generation=2) for s in range(3, STEPS + 1))]
    assert judge(case(replace(JOB, points=points), died)) == []
    for step, ids in {4: (0, 1, 2, 2), 6: (8, 9, 10, 3)}.items():
        spoilt = [note(step, generation=2, ids=ids) if n.step == step else n for n in died]
        assert kinds(case(replace(JOB, points=points), spoilt)) == {Kind.SAMPLE}
    soon = [note(3, generation=2, ids=(8, 9, 10, 4)) if n.step == 3 else n for n in died]
    assert kinds(case(replace(JOB, points=points), soon)) == {Kind.SAMPLE}


def test_a_state_taken_over_from_another_job_is_no_lost_step_and_the_timeline_must_say_so() -> None:
    """At step 4 it gives its own state up for another's of 8 samples, and goes on with twice the batch."""
    own = [point(s, cursor=4 * s, samples=4) for s in range(1, 5)]
    taken = [point(s, lineage=2, cursor=8 + 8 * (s - 2), samples=8) for s in (3, 4)]
    again = [note(s, lineage=2, time=10.0 + s, ids=tuple(range(8))) for s in (3, 4)]
    after = '{"lineage": 2, "donor": "job_2", "samples": 8, "global_batch": 8}'
    told = Row(seq=1, attempt=1, key="plan/1/2", kind="restore", steps_lost=0, after=after)
    job = replace(JOB, points=(*own, *taken), timeline=(told,), total_samples=24)
    assert judge(case(job, [*NOTES[:4], *again])) == []
    untold = replace(job, timeline=(replace(told, after='{"lineage": 2}'),))
    assert {Kind.STEP, Kind.SAMPLE} <= kinds(case(untold, [*NOTES[:4], *again]))
    skipped = replace(job, points=(*own, replace(taken[0], cursor=20), replace(taken[1], cursor=28)))
    assert kinds(case(skipped, [*NOTES[:4], *again])) == {Kind.SAMPLE}


SPOILT_NOTES: dict[str, tuple[list[Note], Kind]] = {
    "a step is missing": ([n for n in NOTES if n.step != 3], Kind.STEP),
    "the last step is missing": (NOTES[:-1], Kind.STEP),
    "a worker does a step twice": ([*NOTES, note(6, time=9.0)], Kind.STEP),
    "a step is redone though all lived": (
        [*pair(1), *pair(2), *(n for s in range(2, STEPS + 1) for n in pair(s, generation=2))],
        Kind.STEP,
    ),
    "a part is missing": ([*NOTES[:2], note(3, ids=(8, 9)), *NOTES[3:]], Kind.SAMPLE),
    "a sample stands in for another": ([*NOTES[:2], note(3, ids=(8, 9, 10, 10)), *NOTES[3:]], Kind.SAMPLE),
    "two lineages at once": ([*NOTES[:4], *(note(s, "1.5", lineage=2) for s in range(3, STEPS + 1))], Kind.TWICE_RUN),
    "a restore skips": (
        [*NOTES[:2], *(note(s, "1.5", lineage=2, time=10.0 + s) for s in range(4, STEPS + 1))],
        Kind.STEP,
    ),
}


@pytest.mark.parametrize("name", SPOILT_NOTES)
def test_spoilt_training_is_found(name: str) -> None:
    notes, kind = SPOILT_NOTES[name]
    assert kind in kinds(case(notes=notes))


@pytest.mark.parametrize(
    "name", ["a worker does a step twice", "a step is redone though all lived", "two lineages at once"]
)
def test_spoilt_training_of_a_job_that_was_deleted_since_is_found(name: str) -> None:
    notes, kind = SPOILT_NOTES[name]
    gone = Evidence(installation="i", fence=1, jobs={}, keys={}, folders=frozenset())
    assert kinds(case(notes=NOTES, evidence=gone, deleted={JOB.id})) == set()
    assert kinds(case(notes=notes, evidence=gone, deleted={JOB.id})) == {kind}


SPOILT_BOOKS: dict[str, tuple[Callable[[Job], Job], Kind]] = {
    "an illegal move": (lambda j: replace(j, events=chain("QUEUED", "RUNNING", "SUCCEEDED")), Kind.STATE),
    "a state without its event": (lambda j: replace(j, state=JobState.FAILED), Kind.STATE),
    "a gap in the events": (lambda j: replace(j, events=(*j.events[:2], *j.events[3:])), Kind.STATE),
    "an attempt too many": (
        lambda j: replace(j, events=chain("QUEUED", "STARTING", "RUNNING", "SUCCEEDED", attempts=(0, 1, 2, 2))),
        Kind.STATE,
    ),
    "workers of a job that is over": (lambda j: replace(j, num_current=1), Kind.STATE),
    "a missing point": (lambda j: replace(j, points=j.points[:2] + j.points[3:]), Kind.POINT),
    "a missing last point": (lambda j: replace(j, points=j.points[:-1]), Kind.POINT),
    "a double point": (lambda j: replace(j, points=(*j.points, point(7, step=6))), Kind.POINT),
    "a point of an older group": (
        lambda j: replace(j, points=(point(1, generation=2), *j.points[1:])),
        Kind.POINT,
    ),
    "a double timeline row": (lambda j: replace(j, timeline=j.timeline * 2), Kind.TIMELINE),
    "a lost worker that cost steps": (
        lambda j: replace(j, timeline=(Row(seq=1, attempt=1, key="x", kind="worker_lost", steps_lost=1),)),
        Kind.TIMELINE,
    ),
    "an unregistered checkpoint": (
        lambda j: replace(j, stored=j.stored | {checkpoint_name(1, 1, 5, 1)}),
        Kind.CHECKPOINT,
    ),
}


@pytest.mark.parametrize("name", SPOILT_BOOKS)
def test_spoilt_books_are_found(name: str) -> None:
    spoil, kind = SPOILT_BOOKS[name]
    assert kind in kinds(case(spoil(JOB)))


def test_a_saved_attempt_must_not_repeat_and_a_cancelled_one_may() -> None:
    states = ("QUEUED", "STARTING", "RUNNING", "PAUSING", "PAUSED", "QUEUED", "STARTING", "RUNNING", "SUCCEEDED")
    events = chain(*states, attempts=(0, 1, 1, 1, 1, 1, 2, 2, 2))
    again = [note(s, attempt=2, time=10.0 + s) for s in range(3, STEPS + 1)]
    points = tuple(point(s, attempt=1 if s < 3 else 2) for s in range(1, STEPS + 1))
    paused = replace(JOB, attempt=2, events=events, points=points)
    assert kinds(case(paused, [*NOTES[:4], *again])) == {Kind.STEP}
    assert judge(case(paused, [*NOTES[:2], *again])) == []
    cancelled = tuple(replace(e, source=_c(e.source), target=str(_c(e.target))) for e in events)
    assert judge(case(replace(paused, events=cancelled), [*NOTES[:4], *again], saves=[saved(2)])) == []
    assert kinds(case(replace(paused, events=cancelled), [*NOTES[:4], *again], saves=[saved(4)])) == {Kind.STEP}
    untold = points[:1] + points[2:]
    assert judge(case(replace(paused, events=cancelled, points=untold), [*NOTES[:4], *again])) == []
    only_first = tuple(p for p in paused.points if p.attempt == 1)
    assert Kind.POINT not in kinds(case(replace(paused, events=cancelled, points=only_first), NOTES))
    assert Kind.POINT in kinds(case(replace(paused, points=only_first), NOTES))
    assert Kind.POINT in kinds(case(replace(paused, points=untold), [*NOTES[:2], *again]))


def _c(state: str | None) -> str | None:
    return {"PAUSING": "CANCELLING", "PAUSED": "CANCELLED"}.get(str(state), state)


def test_lost_doubled_and_left_over_things_are_found() -> None:
    clean = case()
    assert kinds(replace(clean, accepted={"k": "job_1", "l": "job_2"})) == {Kind.LOST}
    assert kinds(replace(clean, accepted={"k": "job_1", "l": "job_2"}, deleted={"job_2"})) == set()
    assert Kind.TWICE_MADE in kinds(replace(clean, accepted={"k": "job_2"}, deleted={"job_2"}))
    assert kinds(replace(clean, remains=Remains(names=["worker/job_1/1/1.0"]))) == {Kind.LEFT}
    running = replace(JOB, state="RUNNING", events=JOB.events[:3])
    assert judge(replace(case(running), remains=Remains(names=["worker/job_1/1/1.0"]))) == []
    assert kinds(replace(case(running), remains=Remains(names=["controller/job_1/2/1"]))) == {Kind.LEFT}


TRIAL = Trial(number=0, state="COMPLETE", is_open=False, job_id="job_1", params="{}")
OTHER = replace(TRIAL, number=1, params='{"optimizer.lr": 0.1}', job_id="job_2")
SWEEP = Sweep(id="sweep_1", state="SUCCEEDED", num_trials=2, trials=(TRIAL, OTHER))
SPOILT_SWEEPS: dict[str, tuple[tuple[Trial, ...], Kind]] = {
    "a missing number": ((TRIAL, replace(OTHER, number=2)), Kind.SWEEP),
    "more than allowed": ((TRIAL, OTHER, replace(OTHER, number=2, params="[]", job_id="job_3")), Kind.SWEEP),
    "a point twice": ((TRIAL, replace(OTHER, params="{}")), Kind.TWICE_MADE),
    "a job twice": ((TRIAL, replace(OTHER, job_id="job_1")), Kind.TWICE_MADE),
    "a job that is gone": ((TRIAL, replace(OTHER, job_id="job_9")), Kind.LOST),
    "a job without its trial": ((TRIAL,), Kind.TWICE_MADE),
    "a trial that goes on": ((TRIAL, replace(OTHER, state="RUNNING", is_open=True)), Kind.SWEEP),
    "a wrong end": ((TRIAL, replace(OTHER, state="PRUNED")), Kind.SWEEP),
}


def searched(*trials: Trial) -> Case:
    clean = case()
    spec = {**JOB.spec, "labels": {"sweep": SWEEP.id}}
    jobs = {id_: replace(JOB, id=id_, spec=spec) for id_ in ("job_1", "job_2", "job_3")[: max(2, len(trials))]}
    sweeps = {SWEEP.id: replace(SWEEP, trials=trials)}
    evidence = replace(clean.evidence, jobs=jobs, keys={"k": SWEEP.id}, folders=frozenset(jobs), sweeps=sweeps)
    return replace(clean, evidence=evidence, notes=[], accepted={"k": SWEEP.id})


def test_the_books_of_a_sweep_that_is_right_are_clean() -> None:
    assert judge(searched(TRIAL, OTHER)) == []


@pytest.mark.parametrize("name", SPOILT_SWEEPS)
def test_wrong_books_of_a_sweep_are_found(name: str) -> None:
    trials, kind = SPOILT_SWEEPS[name]
    assert kind in kinds(searched(*trials))


RUN = PromotionRun(number=1, contender=-1, pair=0, job_id="job_2", is_open=False, state="KEPT")
SPOILT_RUNS: dict[str, tuple[tuple[PromotionRun, ...], Kind]] = {
    "a job that is gone": ((RUN, replace(RUN, pair=1, job_id="job_9")), Kind.LOST),
    "a job twice": ((RUN, replace(RUN, pair=1)), Kind.TWICE_MADE),
    "a job without its run": ((), Kind.TWICE_MADE),
    "a run that never ends": ((replace(RUN, is_open=True),), Kind.SWEEP),
}


def promoted(*runs: PromotionRun) -> Case:
    searched_once = searched(TRIAL)
    jobs = {
        id_: replace(job, spec=JOB.spec | {"labels": {"promotion": SWEEP.id} if id_ == "job_2" else {}})
        for id_, job in searched_once.evidence.jobs.items()
    }
    sweeps = {SWEEP.id: replace(SWEEP, trials=(TRIAL,), runs=runs)}
    return replace(searched_once, evidence=replace(searched_once.evidence, jobs=jobs, sweeps=sweeps))


def test_the_books_of_a_promotion_that_is_right_are_clean() -> None:
    assert judge(promoted(RUN)) == []


@pytest.mark.parametrize("name", SPOILT_RUNS)
def test_wrong_books_of_a_promotion_are_found(name: str) -> None:
    runs, kind = SPOILT_RUNS[name]
    assert kind in kinds(promoted(*runs))


LEFT_FILES: dict[str, dict[str, object]] = {
    "a folder in storage": {"folders": frozenset({"job_1", "job_9"})},
    "a folder in scratch": {"scratch": {"logs": frozenset({"job_1", "job_9"})}},
    "half an upload": {"uploads": frozenset({"1234.part"})},
    "half a deletion": {"half_deleted": frozenset({"job_1"})},
}


@pytest.mark.parametrize("name", LEFT_FILES)
def test_files_that_nobody_owns_are_found(name: str) -> None:
    clean = case()
    changed: dict[str, Any] = LEFT_FILES[name]
    assert kinds(replace(clean, evidence=replace(clean.evidence, **changed))) == {Kind.LEFT}


ENDS: dict[str, tuple[str, ...]] = {
    "SUCCEEDED": ("RUNNING", "SUCCEEDED"),
    "FAILED": ("RUNNING", "FAILED"),
    "CANCELLED": ("CANCELLING", "CANCELLED"),
    "PAUSED": ("PAUSING", "PAUSED"),
}


@pytest.mark.parametrize("state", ENDS)
def test_half_a_save_of_a_job_that_rests_is_found(state: str) -> None:
    job = replace(JOB, state=state, events=chain("QUEUED", "STARTING", *ENDS[state]))
    assert judge(case(job)) == []
    assert kinds(case(replace(job, unfinished=frozenset({"drafts/c.1.json"})))) == {Kind.LEFT}


WORKER, SPARE = "worker/job_1/1/1.0", "spare/n/0"
LEFT_IN_CLUSTER: dict[str, tuple[Remains, Kind]] = {
    "room of a spare that waits": (Remains(spares=[SPARE], groups={"g": SPARE}), Kind.LEFT),
    "room of one that is gone": (Remains(groups={"g": ""}), Kind.LEFT),
    "a process that is no actor's": (Remains(processes=["7 ray::TrainWorker"]), Kind.LEFT),
    "an earlier term": (Remains(names=["controller/job_1/1/1", "controller/job_1/1/2"]), Kind.TERMS),
}


@pytest.mark.parametrize("name", LEFT_IN_CLUSTER)
def test_what_a_cluster_holds_of_no_living_worker_is_found(name: str) -> None:
    remains, kind = LEFT_IN_CLUSTER[name]
    running = case(replace(JOB, state="RUNNING", term=2, events=JOB.events[:3]))
    assert judge(replace(running, remains=Remains(names=[WORKER], groups={"g": WORKER}, spares=[SPARE]))) == []
    assert kinds(replace(running, remains=remains)) == {kind}


OURS = ("JobController", "SweepController.answer", "TrainWorker", "isfile", "spare/n/0:TrainWorker.__init__")
NOT_OURS = ("IDLE", "ImplicitFunc", "Stranger.TrainWorker")


def test_what_is_ours_among_the_processes_of_a_ray_is_known_by_its_title(tmp_path: Path) -> None:
    raylet = tmp_path / "raylet"
    raylet.symlink_to(shutil.which("bash") or "/bin/bash")
    script = " ".join(f"(exec -a ray::{title} sleep 60) &" for title in (*OURS, *NOT_OURS))
    with subprocess.Popen(
        [raylet, "-c", f"{script} wait", f"--temp-dir={tmp_path}"], start_new_session=True
    ) as process:

        def have_begun() -> bool:
            children = psutil.Process(process.pid).children()
            return sum(child.name() == "sleep" for child in children) == len(OURS) + len(NOT_OURS)

        try:
            wait_for("its children", have_begun)
            titles = [told.split()[1] for told in titled(tmp_path).values()]
            assert sorted(titles) == [f"ray::{title}" for title in OURS]
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_round_that_was_skipped_is_no_step_and_its_point_no_double() -> None:
    points = (*JOB.points[:2], point(3, step=2, is_skipped=True), *(point(n, step=n - 1) for n in range(4, STEPS + 1)))
    skipped = replace(JOB, points=points)
    assert judge(case(skipped, notes=[])) == []
    ended_early = replace(skipped, points=points[:-1])
    assert kinds(case(ended_early, notes=[])) == {Kind.POINT}
    assert kinds(case(replace(skipped, points=tuple(replace(p, is_skipped=False) for p in points)), [])) == {Kind.POINT}


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "diary"
    file.write_bytes(line_of(NOTES[0]) + line_of(saved(1)) + line_of(NOTES[1])[:20])
    assert (read_diary(file), read_saves(file)) == ([NOTES[0]], [saved(1)])
    assert (read_diary(tmp_path / "none"), read_saves(tmp_path / "none")) == ([], [])


@pytest.mark.anyio
async def test_the_evidence_of_a_real_database_is_what_the_store_was_told(
    store: Store, database_url: str, tmp_path: Path
) -> None:
    job = await placed(store, fence := await leader(store))
    told = snapshot(job, [record(1), record(2)], timeline=(row("r", cost_s=0.5),), checkpoints=(checkpoint(2),))
    await store.reconciler.fold(told, fence)
    found = gather(load_settings({"home": tmp_path / "home", "database": database_url}, {})).jobs[job.id]
    assert [event.target for event in found.events] == ["QUEUED", "STARTING"]
    assert [(p.attempt, p.lineage, p.generation, p.round, p.step) for p in found.points] == [
        (1, 1, 1, 1, 1),
        (1, 1, 1, 2, 2),
    ]
    assert [(r.seq, r.key, r.kind, r.steps_lost) for r in found.timeline] == [(1, "r", "resize", 0)]
    assert found.checkpoints == {checkpoint(2).path}
    assert (found.state, found.attempt, found.term, found.steps, found.batch) == ("STARTING", 1, 1, 100, 32)


@pytest.mark.anyio
async def test_the_evidence_of_storage_behind_a_url_is_what_lies_there(
    store: Store, database_url: str, tmp_path: Path
) -> None:
    job = await placed(store, await leader(store))
    settings = load_settings({"home": tmp_path / "home", "database": database_url}, {})
    url = f"memory://{job.id}"
    storage, whole, draft = open_storage(url), checkpoint_name(1, 1, 5, 1), draft_key(f"{LAST}.0")
    place = f"{JOBS}/{job.id}/checkpoints"
    for key in (f"{place}/{manifest_key(whole)}", f"{place}/{draft}", f"{JOBS}/job_9/a", f"{BUNDLES}/a.zip"):
        storage.write(key, [b"x"])
    try:
        found = gather(settings.model_copy(update={"storage": url}))
        assert (found.jobs[job.id].stored, found.jobs[job.id].unfinished) == ({whole}, {draft})
        assert (found.folders, found.stray_bundles) == ({job.id, "job_9"}, {f"{BUNDLES}/a.zip"})
    finally:
        storage.clear()
