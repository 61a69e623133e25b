"""What one job tells while it runs: records, timeline, logs and checkpoints that fit together."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from service.records import JobRow
from service.states import JobState
from tests.browser.foreseen import footprint, forecast
from tests.browser.rank_spans import rank_spans
from workers.lr import LrPlan
from workers.plan import Cause, FreshSource, Member, Plan, PlanId, Switch, TimelineKind
from workers.racks import Topology, topology_of
from workers.status import (
    CheckpointInfo,
    JobSnapshot,
    LogChunk,
    Outcome,
    Phase,
    RoundRecord,
    RunPhase,
    TimelineRow,
    WorkerView,
)

NODES = ("5f1c0de2a7b94c31", "b82e66d10f4f4a07")
RACK = "a12"
GLOBAL_BATCH = 128
OF_DENSE = {"encode_s": 0.0, "decode_s": 0.0, "wire_ratio": 0.997}
CHECKPOINT_STEPS = 250


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
            if step % CHECKPOINT_STEPS == 0:
                saved = self._checkpoint(step, now_s, generation, records[-1])
                row = self._row(TimelineKind.CHECKPOINT, step, now_s, workers, workers)
                checkpoints.append(saved)
                rows.append(replace(row, reason=saved.reason))
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
            workers=_views(workers),
            topology=_topology(workers),
            forecast=forecast(workers, GLOBAL_BATCH, course.speed, tuple({size for _, size in course.sizes})),
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
            topology=_topology(workers),
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

    def losing_all(self, snapshot: JobSnapshot) -> JobSnapshot:
        """All workers are lost with their node, and new ones are waited for."""
        last = snapshot.records[-1]
        lost = [{"worker_id": each.worker_id, "rank": each.rank, "node_id": each.node_id} for each in snapshot.workers]
        row = self._row(TimelineKind.WORKER_LOST, last.round, last.time + 0.5, snapshot.num_current, 0)
        row = replace(row, before={**row.before, "lost": lost}, reason="the node is gone", cost_s=None, steps_lost=None)
        return replace(
            snapshot,
            phase=RunPhase.RECOVERING,
            workers=(),
            num_current=0,
            num_pending=len(lost),
            records=(),
            logs=(),
            spans=(),
            timeline=(row,),
            checkpoints=(),
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
            **OF_DENSE,
            "wire_bytes": 1.09e6 * 2 * (workers - 1) / workers,
            "optimizer_s": step_s * 0.08,
            "memory_bytes": 412e6 + 1e6 * noise,
            "user.margin": 1.2 * done,
        }
        if step % 16 == 0:
            values["noise_scale"] = 90 + 700 * done + 20 * noise
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
            reason=f"every {CHECKPOINT_STEPS} steps",
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


def _topology(workers: int) -> Topology | None:
    """Nodes of one label with a slow link between them, where there are enough workers to see that."""
    speeds = [[118e6 if a % 2 == b % 2 else 5.9e6 for b in range(workers)] for a in range(workers)]
    latencies_s = [[1.4e-4 if a % 2 == b % 2 else 8e-4 for b in range(workers)] for a in range(workers)]
    return topology_of(speeds, latencies_s, (RACK,) * workers) if workers > 2 else None


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
            part=GLOBAL_BATCH // workers,
            busy_share=0.85 - 0.05 * rank,
            waiting_share=0.09 + 0.05 * rank,
            wire_bytes_per_s=4.2e7,
            wire_share=0.31,
            footprint=footprint(rank),
            rack_label=RACK,
        )
        for rank in range(workers)
    )
