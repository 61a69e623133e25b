"""What tests begin with: specs, snapshots, records, a clock that stands still."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

from service.records import BundleRow, JobRow
from service.store.opening import Store
from workers.lr import LrPlan
from workers.plan import Cause, FreshSource, Member, Plan, PlanId, Switch, TimelineKind
from workers.spec import JobSpec, parse_job_spec
from workers.status import (
    CheckpointInfo,
    JobSnapshot,
    LogChunk,
    Phase,
    RoundRecord,
    RunPhase,
    TimelineRow,
    WorkerView,
)

START_S = 1_795_000_000.0
BATCH = 32


class Clock:
    """Time that moves when told to."""

    def __init__(self) -> None:
        self.now_s = START_S

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


def spec_document(**changes: Any) -> dict[str, Any]:
    """A job spec that is accepted: 100 steps of 32 samples on 1 to 4 workers."""
    return {
        "name": "digits",
        "entrypoint": "workers.recipes.digits:build",
        "steps": 100,
        "batch": {"global_size": BATCH},
        "workers": {"min": 1, "max": 4},
        **changes,
    }


def spec(**changes: Any) -> JobSpec:
    return parse_job_spec(spec_document(**changes))


def record(round: int, *, lineage: int = 1, generation: int = 1, skipped: bool = False, **values: float) -> RoundRecord:
    return RoundRecord(
        lineage=lineage,
        round=round,
        generation=generation,
        plan_id=PlanId(1, 1),
        cursor=round * BATCH,
        samples=BATCH,
        time=START_S + round,
        values={"loss": 1.0 / round, **{k.replace("__", "."): v for k, v in values.items()}},
        is_skipped=skipped,
    )


def log(data: bytes, *, worker: str = "1.0", offset: int = 0, rank: int | None = 0) -> LogChunk:
    return LogChunk(worker_id=worker, offset=offset, rank=rank, time=START_S, data=data)


def view(worker: str = "1.0", rank: int | None = 0, node: str = "n1") -> WorkerView:
    return WorkerView(
        worker_id=worker, rank=rank, node_id=node, pid=1, phase=Phase.COMPUTE, phase_age_s=0.1, memory_bytes=1000
    )


def row(key: str, *, cost_s: float | None = None, kind: TimelineKind = TimelineKind.RESIZE) -> TimelineRow:
    return TimelineRow(
        key=key,
        kind=kind,
        time=START_S,
        step=5,
        actor="user",
        reason="more speed",
        before={"workers": 1},
        after={"workers": 2},
        cost_s=cost_s,
        steps_lost=None if cost_s is None else 0,
    )


def checkpoint(step: int, *, attempt: int = 1, lineage: int = 1, final: bool = False) -> CheckpointInfo:
    return CheckpointInfo(
        path=f"{attempt:04d}-{lineage:04d}-{step:09d}-00001",
        attempt=attempt,
        lineage=lineage,
        generation=1,
        round=step,
        step=step,
        cursor=step * BATCH,
        size_bytes=1000,
        metric=None,
        is_final=final,
        created_at=START_S + step,
    )


def plan(batch: int) -> Plan:
    """Two workers that train with this global batch."""
    return Plan(
        id=PlanId(1, 2),
        switch=Switch.AGREED,
        generation=1,
        lineage=1,
        source=FreshSource(),
        members=(Member(worker_id="1.0", rank=0), Member(worker_id="1.1", rank=1)),
        global_batch=batch,
        lr=LrPlan(lr=0.1, base_batch=32),
        cause=Cause(kind=TimelineKind.BATCH, actor="goodput", reason="more progress"),
    )


def snapshot(job: JobRow, records: Iterable[RoundRecord] = (), **changes: Any) -> JobSnapshot:
    """One worker that trains."""
    found = tuple(records)
    defaults: Mapping[str, Any] = {
        "job_id": job.id,
        "attempt": job.attempt,
        "term": job.term,
        "phase": RunPhase.RUNNING,
        "cursor": max((r.cursor for r in found), default=0),
        "lineage": max((r.lineage for r in found), default=1),
        "total_samples": 100 * BATCH,
        "num_current": 1,
        "workers": (view(),),
        "records": found,
    }
    return JobSnapshot(**{**defaults, **changes})


async def leader(store: Store, holder: str = "reconciler") -> int:
    """The fencing number of a lease that lasts."""
    fence = await store.reconciler.take_lease(holder, 1e6)
    assert fence is not None
    return fence


async def stored_bundle(store: Store, sha256: str, key: str = "bundles/a.zip") -> BundleRow:
    """The row of an upload that came to its end; its bytes are the caller's to put under ``key``."""
    await store.bundles.announce(key)
    return (await store.bundles.add(sha256, 100, 1, key))[0]


async def placed(store: Store, fence: int, **changes: Any) -> JobRow:
    """A job that is STARTING."""
    submitted = await store.jobs.submit(spec(**changes))
    return await store.reconciler.admit(submitted.job, 1, fence)


def zip_bytes(files: Mapping[str, bytes | str], *, stored: bool = False) -> bytes:
    """A zip archive of these files."""
    buffer = io.BytesIO()
    method = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()
