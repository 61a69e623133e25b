"""The jobs that the tests of pages find: one in every state that people look at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from service.folders import output_place
from service.records import Explanation, JobRow, Transition
from service.states import JobState, Move
from tests.browser.history import Course, History
from tests.browser.sample import Sample
from workers.errors import Failure, Reason
from workers.status import LogChunk, RunGoal, RunPhase

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 41, in loss
    return F.cross_entropy(model(batch["image"]), batch["label"])
RuntimeError: expected scalar type Long but found Float
"""

LINES_OF_A_FAILURE = "loading 1,437 samples\n<b>not bold</b>\n" + TRACEBACK + "leaving the round\n"


async def fill(sample: Sample) -> dict[str, JobRow]:
    """Jobs in every state that people look at, by name; ``digits`` runs and lost a worker."""
    await sample.begin()
    await sample.cluster()
    jobs = {
        "mnist-warmup": await sample.run(
            Course("mnist-warmup", 1500, 1500, [(0, 1), (600, 2)], seed=2, ends=JobState.SUCCEEDED)
        )
    }
    jobs["wide-fails"] = await _failed(sample)
    cancelled = await sample.run(Course("first-try", 4000, 700, [(0, 2)], seed=4))
    await sample.command(cancelled, Move(to=JobState.CANCELLING, goal=RunGoal.CANCEL, reason=Reason.CANCELLED_BY_USER))
    jobs["first-try"] = await sample.move(cancelled, JobState.CANCELLED, Transition(reason=Reason.CANCELLED_BY_USER))
    paused = await sample.run(Course("chargpt-small", 6000, 1900, [(0, 2)], speed=900.0, seed=6))
    await sample.command(paused, Move(to=JobState.PAUSING, goal=RunGoal.PAUSE))
    jobs["chargpt-small"] = await sample.move(paused, JobState.PAUSED)
    jobs["speech-tiny"] = await _recovering(sample)
    jobs["digits"] = digits = await sample.run(
        Course(
            "digits",
            5000,
            3120,
            [(0, 1), (700, 2), (1500, 3), (2100, 2), (2700, 3)],
            spec={"labels": {"team": "vision", "data": "digits"}},
            seed=1,
        )
    )
    output = Path(output_place(sample.storage, digits.id))
    output.mkdir(parents=True)
    (output / "confusion matrix.csv").write_text("0,1\n9,8\n")
    waiting = await sample.submit(Course("chargpt-large", 20000, 0, [(0, 4)], spec={"workers": {"min": 4, "max": 8}}))
    jobs["chargpt-large"] = waiting
    explanation = Explanation(
        summary="It waits for 4 CPUs; 3 are free.",
        details=("digits holds 3 CPUs and is about to end.", "It is the first in the queue."),
        remedy="Lower workers.min to 3, or wait: digits frees its workers in about 20 s.",
    )
    await sample.store.reconciler.set_explanations([(waiting, explanation)], sample.fence)
    return jobs


async def _recovering(sample: Sample) -> JobRow:
    """All of its workers were lost at once, and it waits for others."""
    course = Course("speech-tiny", 3000, 400, [(0, 2)], seed=10)
    job = await sample.run(course)
    told = History(course, job, sample.clock.now_s)
    await sample.store.reconciler.fold(told.losing_all(told.snapshot(course.upto)), sample.fence)
    return await sample.move(job, JobState.RECOVERING, Transition(reason=Reason.NODE_LOST))


async def _failed(sample: Sample) -> JobRow:
    course = Course("wide-fails", 2000, 40, [(0, 1)], seed=8, spec={"config": {"hidden": 512}})
    job = await sample.run(course)
    snapshot = History(course, job, sample.clock.now_s).snapshot(0)
    chunk = LogChunk(worker_id="1.9", offset=0, rank=0, time=sample.clock.now_s, data=LINES_OF_A_FAILURE.encode())
    ended = replace(snapshot, phase=RunPhase.ENDED, workers=(), num_current=0, timeline=(), logs=(chunk,))
    await sample.store.reconciler.fold(replace(ended, records=()), sample.fence)
    failure = Failure(
        reason=Reason.USER_ERROR,
        type="RuntimeError",
        message="expected scalar type Long but found Float",
        traceback=TRACEBACK,
        rank=0,
        round=41,
    )
    change = Transition(reason=Reason.USER_ERROR, failure=failure)
    return await sample.move(job, JobState.FAILED, change)
