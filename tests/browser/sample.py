"""A realistic installation, written through the store's own functions as the reconciler would."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from service.folders import checkpoints_place, output_place
from service.records import ClusterView, Explanation, JobRow, NodeView, Transition
from service.replica import mark_storage
from service.states import JobState, Move
from service.store.opening import Store
from tests.browser.rank_spans import rank_spans
from tests.stored_checkpoint import store_checkpoint
from workers.errors import Failure, Reason
from workers.lr import LrPlan
from workers.plan import Cause, FreshSource, Member, Plan, PlanId, Switch, TimelineKind
from workers.spec import parse_job_spec
from workers.status import (
    CheckpointInfo,
    JobSnapshot,
    LogChunk,
    Outcome,
    Phase,
    RoundRecord,
    RunGoal,
    RunPhase,
    TimelineRow,
    WorkerView,
)
from workers.storage import open_storage

WEIGHTS_BYTES = b"weights"
NODES = ("5f1c0de2a7b94c31", "b82e66d10f4f4a07")
GLOBAL_BATCH = 128


@dataclass
class Clock:
    """Time that the test moves; Unix seconds."""

    now_s: float

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Course:
    """How one job went: ``sizes`` are (step, workers), the first at step 0."""

    name: str
    steps: int
    upto: int
    sizes: Sequence[tuple[int, int]]
    spec: Mapping[str, Any] = field(default_factory=dict)
    speed: float = 5200.0
    seed: int = 0
    ends: JobState | None = None


class Sample:
    """Fills a store; ``fence`` is the reconciler's, 0 until ``begin``."""

    def __init__(self, store: Store, clock: Clock, storage: str, fence: int = 0) -> None:
        self.store = store
        self.clock = clock
        self.storage = storage
        self.fence = fence

    async def begin(self) -> None:
        """Become the reconciler."""
        fence = await self.store.reconciler.take_lease("test", 10**9)
        mark_storage(self.storage, await self.store.reconciler.installation_id())
        assert fence is not None
        self.fence = fence

    async def submit(self, course: Course) -> JobRow:
        """A queued job."""
        document = {
            "name": course.name,
            "entrypoint": "workers.recipes.digits:build",
            "steps": course.steps,
            "workers": {"min": 1, "max": 4},
            "config": {"hidden": 128},
            "checkpoint": {"metric": "eval.accuracy"},
            **course.spec,
        }
        return (await self.store.jobs.submit(parse_job_spec(document))).job

    async def move(self, job: JobRow, to: JobState, change: Transition | None = None) -> JobRow:
        """One transition by the reconciler, of the row as it is now."""
        row = await self.store.reconciler.job(job.id)
        assert row is not None
        return await self.store.reconciler.transition(row, to, change or Transition(), self.fence)

    async def start(self, job: JobRow, workers: int) -> JobRow:
        """Admit a job and let it run."""
        self.clock.now_s += 0.4
        admitted = await self.store.reconciler.admit(job, workers, self.fence)
        self.clock.now_s += 3.1
        return await self.move(admitted, JobState.RUNNING)

    async def run(self, course: Course) -> JobRow:
        """A job with its whole history up to ``course.upto``, ended where the course says so."""
        job = await self.start(await self.submit(course), course.sizes[0][1])
        told = History(course, job, self.clock.now_s)
        snapshot = told.snapshot(course.upto)
        await self.store.reconciler.fold(
            replace(snapshot, records=(), logs=(), timeline=(), checkpoints=()), self.fence
        )
        self.clock.now_s = max(self.clock.now_s, snapshot.records[-1].time) if snapshot.records else self.clock.now_s
        await self._fold(snapshot)
        row = await self.store.reconciler.job(job.id)
        assert row is not None
        await self.store.reconciler.set_desired(row, course.sizes[-1][1], self.fence)
        if course.ends is JobState.SUCCEEDED:
            await self._fold(told.ending(snapshot))
            await self.move(row, JobState.SUCCEEDED)
        found = await self.store.reconciler.job(job.id)
        assert found is not None
        return found

    async def _fold(self, snapshot: JobSnapshot) -> None:
        """Store what the snapshot tells; its newest two checkpoints are in storage, as a worker leaves them."""
        for info in snapshot.checkpoints[-2:]:
            place = open_storage(checkpoints_place(self.storage, snapshot.job_id))
            store_checkpoint(place, info, {"w": WEIGHTS_BYTES})
        await self.store.reconciler.fold(snapshot, self.fence)

    async def log(self, job: JobRow, text: str) -> None:
        """A line from a worker that has not written before."""
        row = await self.store.reconciler.job(job.id)
        assert row is not None
        chunk = LogChunk(worker_id="1.8", offset=0, rank=0, time=self.clock.now_s, data=text.encode())
        now = History(Course(row.name, 5000, 0, [(0, 3)]), row, self.clock.now_s).snapshot(0)
        told = replace(now, logs=(chunk,), timeline=(), cursor=row.samples, total_samples=row.total_samples)
        await self.store.reconciler.fold(told, self.fence)

    async def command(self, job: JobRow, move: Move) -> JobRow:
        """A user's command on the job as it is now."""
        row = await self.store.jobs.job(job.id)
        assert row is not None
        return await self.store.jobs.command(row, move)

    async def cluster(self, *, is_up: bool = True) -> None:
        """What the reconciler last saw of Ray."""
        nodes = tuple(
            NodeView(
                node_id=node_id,
                name=name,
                is_alive=True,
                total={"cpus": 4, "gpus": 0, "memory_bytes": 16e9},
                free={"cpus": free, "gpus": 0, "memory_bytes": 11e9},
            )
            for node_id, name, free in zip(NODES, ("alder", "birch"), (1.0, 2.0), strict=True)
        )
        view = ClusterView(is_up=True, address="127.0.0.1:6379", ray_version="2.60.0", nodes=nodes)
        if not is_up:
            view = replace(view, is_up=False, error="no answer from 127.0.0.1:6379 within 5 s")
        await self.store.reconciler.put_cluster(view, self.fence)


class History:
    """Records, timeline, logs and checkpoints that fit together."""

    def __init__(self, course: Course, job: JobRow, began_s: float) -> None:
        self.course = course
        self.job = job
        self.began_s = began_s
        self._random = random.Random(course.seed)

    def snapshot(self, upto: int) -> JobSnapshot:
        """Everything that happened until step ``upto``."""
        course = self.course
        records, rows, checkpoints = [], [self._row(TimelineKind.START, 0, self.began_s, 0, course.sizes[0][1])], []
        now_s, workers, generation = self.began_s, course.sizes[0][1], 1
        sizes = dict(course.sizes[1:])
        for step in range(1, upto + 1):
            if (size := sizes.get(step)) is not None:
                gap_s = 0.18 if size < workers else 0.21
                rows.append(self._change(step, now_s, workers, size, gap_s))
                now_s, workers, generation = now_s + gap_s, size, generation + 1
            now_s += GLOBAL_BATCH / (course.speed * workers**0.85) * self._random.uniform(0.94, 1.06)
            records.append(self._record(step, now_s, workers, generation))
            if step % 250 == 0:
                checkpoints.append(self._checkpoint(step, now_s, generation, records[-1]))
                rows.append(replace(self._row(TimelineKind.CHECKPOINT, step, now_s, workers, workers), cost_s=0.0))
        return JobSnapshot(
            job_id=self.job.id,
            attempt=self.job.attempt,
            term=self.job.term,
            phase=RunPhase.RUNNING,
            plan=_plan(workers, generation),
            lineage=1,
            cursor=upto * GLOBAL_BATCH,
            total_samples=course.steps * GLOBAL_BATCH,
            num_current=workers,
            num_wanted=workers,
            workers=_views(workers),
            records=tuple(records),
            logs=self._logs(upto, workers, now_s),
            timeline=tuple(rows),
            checkpoints=tuple(checkpoints),
            spans=rank_spans(records, self.course.steps),
        )

    def more(self, snapshot: JobSnapshot, upto: int, workers: int) -> JobSnapshot:
        """The next steps, all with ``workers`` workers."""
        last = snapshot.records[-1]
        records, now_s = [], last.time
        for step in range(last.round + 1, upto + 1):
            now_s += GLOBAL_BATCH / (self.course.speed * workers**0.85)
            records.append(self._record(step, now_s, workers, last.generation + 1))
        return replace(
            snapshot,
            records=tuple(records),
            logs=(),
            timeline=(),
            checkpoints=(),
            spans=(),
            cursor=upto * GLOBAL_BATCH,
            num_current=workers,
            workers=_views(workers),
        )

    def ending(self, snapshot: JobSnapshot) -> JobSnapshot:
        """The last words of an attempt that succeeded."""
        last = snapshot.records[-1]
        row = self._row(TimelineKind.END, last.round, last.time + 0.3, snapshot.num_current, 0)
        row = replace(row, reason="all samples are trained on", after={"workers": 0, "outcome": "succeeded"})
        final = self._checkpoint(last.round, last.time + 0.2, last.generation, last)
        return replace(
            snapshot,
            phase=RunPhase.ENDED,
            outcome=Outcome.SUCCEEDED,
            workers=(),
            num_current=0,
            records=(),
            logs=(),
            spans=(),
            timeline=(row,),
            checkpoints=(replace(final, is_final=True),),
        )

    def _record(self, step: int, time_s: float, workers: int, generation: int) -> RoundRecord:
        course, noise = self.course, self._random.gauss(0, 1)
        done = step / course.steps
        loss = 0.06 + 2.25 * math.exp(-7 * done) + 0.02 * noise * (0.4 + math.exp(-4 * done))
        speed = course.speed * workers**0.85 * (1 + 0.03 * noise)
        step_s = GLOBAL_BATCH / speed
        values = {
            "loss": max(0.01, loss),
            "lr": 1e-3 * 0.5 * (1 + math.cos(math.pi * done)),
            "grad_norm": 0.4 + 2 * math.exp(-3 * done) + abs(0.2 * noise),
            "workers": float(workers),
            "global_batch": float(GLOBAL_BATCH),
            "micro_batch": GLOBAL_BATCH / workers,
            "samples_per_s": speed,
            "step_s": step_s,
            "data_s": step_s * 0.06,
            "compute_s": step_s * 0.71,
            "exchange_s": step_s * 0.2,
            "exposed_s": step_s * 0.09,
            "optimizer_s": step_s * 0.08,
            "memory_bytes": 412e6 + 1e6 * noise,
            "user.margin": 1.2 * done,
        }
        if step % 100 == 0 or step == course.steps:
            values["eval.accuracy"] = 0.976 - 0.86 * math.exp(-9 * done) + 0.002 * noise
            values["eval.loss"] = max(0.02, loss * 1.08 + 0.02)
        return RoundRecord(
            lineage=1,
            round=step,
            generation=generation,
            plan_id=PlanId(1, generation),
            cursor=step * GLOBAL_BATCH,
            samples=GLOBAL_BATCH,
            time=time_s,
            values=values,
        )

    def _row(self, kind: TimelineKind, step: int, time_s: float, before: int, after: int) -> TimelineRow:
        return TimelineRow(
            key=f"{kind}/{step}",
            kind=kind,
            time=time_s,
            step=step,
            actor="controller",
            reason="",
            before={"workers": before},
            after={"workers": after},
            cost_s=0.0,
            steps_lost=0,
        )

    def _change(self, step: int, time_s: float, before: int, after: int, cost_s: float) -> TimelineRow:
        is_lost = after == before - 1 and self.course.seed % 2 == 1
        row = self._row(TimelineKind.WORKER_LOST if is_lost else TimelineKind.RESIZE, step, time_s, before, after)
        if not is_lost:
            return replace(row, actor="user", reason="free capacity" if after > before else "make room", cost_s=cost_s)
        lost = {"worker_id": f"1.{before}", "rank": before - 1, "node_id": NODES[1]}
        return replace(
            row,
            reason=f"worker 1.{before}: its process was killed (SIGKILL); went on with {after}",
            before={"workers": before, "lost": [lost]},
            cost_s=cost_s,
        )

    def _checkpoint(self, step: int, time_s: float, generation: int, record: RoundRecord) -> CheckpointInfo:
        return CheckpointInfo(
            path=f"0001-0001-{step:09d}-{generation:05d}",
            attempt=self.job.attempt,
            lineage=1,
            generation=generation,
            round=step,
            step=step,
            cursor=step * GLOBAL_BATCH,
            size_bytes=1_213_440,
            metric=record.values.get("eval.accuracy", 0.9 + step / 1e5),
            is_final=False,
            created_at=time_s,
        )

    def _logs(self, upto: int, workers: int, now_s: float) -> tuple[LogChunk, ...]:
        lines = [f"epoch {1 + step // 11}: step {step} of {self.course.steps}\n" for step in range(0, upto, 10)]
        return tuple(
            LogChunk(
                worker_id=f"1.{rank + 1}",
                offset=0,
                rank=rank,
                time=now_s + rank * 1e-3,
                data="".join(f"[{rank}] {line}" for line in lines).encode(),
            )
            for rank in range(workers)
        )


def _plan(workers: int, generation: int) -> Plan:
    return Plan(
        id=PlanId(1, generation),
        switch=Switch.AGREED,
        generation=generation,
        lineage=1,
        source=FreshSource(),
        members=tuple(Member(worker_id=f"1.{rank + 1}", rank=rank) for rank in range(workers)),
        global_batch=GLOBAL_BATCH,
        lr=LrPlan(lr=1e-3, base_batch=128),
        cause=Cause(kind=TimelineKind.START, actor="controller", reason=""),
    )


def _views(workers: int) -> tuple[WorkerView, ...]:
    return tuple(
        WorkerView(
            worker_id=f"1.{rank + 1}",
            rank=rank,
            node_id=NODES[rank % 2],
            pid=4100 + rank,
            phase=Phase.COMPUTE,
            phase_age_s=0.004,
            memory_bytes=412_000_000 + rank * 3_000_000,
            device="cpu",
            micro_size=GLOBAL_BATCH // workers,
        )
        for rank in range(workers)
    )


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
