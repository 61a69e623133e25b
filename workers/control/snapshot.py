"""All that a controller knows, folded into one value for the service. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workers.control import compressing, racks, sharing
from workers.control.decisions import ControllerState
from workers.control.sizing import num_asked
from workers.control.telemetry import Pending
from workers.errors import Failure, Reason
from workers.plan import Plan
from workers.status import (
    TRAINING_PHASES,
    CheckpointInfo,
    Direction,
    JobSnapshot,
    Outcome,
    Phase,
    RunPhase,
    WorkerStatus,
    WorkerView,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the attempt has come, remembered when the workers that told it are gone.

    ``has_trained``: a round of it was committed, or a group was seen in training.
    """

    attempt: int = 0
    lineage: int = 0
    cursor: int = 0
    total_samples: int | None = None
    has_trained: bool = False

    def step(self, global_size: int) -> int:
        """Progress in steps of the spec; a last one of fewer samples counts, too."""
        is_complete = self.total_samples is not None and self.cursor >= self.total_samples
        return -(-self.cursor // global_size) if is_complete else self.cursor // global_size

    def after(self, state: ControllerState, latest: CheckpointInfo | None) -> Progress:
        """With what the workers say now, and with the checkpoint that the attempt would go on from."""
        statuses = [f.status for f in state.workers.values() if f.status is not None]
        places = [(self.attempt, self.lineage, self.cursor)]
        places += [(state.key.attempt, s.lineage, s.cursor) for s in statuses if s.lineage and s.cursor is not None]
        places += [(latest.attempt, latest.lineage, latest.cursor)] if latest else []
        totals = [s.build.total_samples for s in statuses if s.build is not None]
        attempt, lineage, cursor = max(places)
        total = totals[0] if totals else self.total_samples
        # Rounds that were trained and failed between two looks are known by their records only.
        has_trained = self.has_trained or state.has_trained or any(s.records for s in statuses)
        return Progress(attempt=attempt, lineage=lineage, cursor=cursor, total_samples=total, has_trained=has_trained)


def fold(
    state: ControllerState, direction: Direction, pending: Pending, progress: Progress, crash: Failure | None
) -> JobSnapshot:
    """The attempt as it is now; ``crash`` is set when the controller itself failed."""
    statuses = [f.status for f in state.workers.values() if f.status is not None]
    plan = _plan_in_force(state)
    parts = {} if plan is None else plan.parts
    want = min(max(direction.num_workers, state.spec.workers.min), state.spec.workers.max)
    end = state.ending
    return JobSnapshot(
        job_id=state.key.job_id,
        attempt=state.key.attempt,
        term=state.term,
        phase=RunPhase.ENDED if crash else state.phase,
        outcome=Outcome.FAILED if crash else state.outcome,
        reason=Reason.CONTROLLER_ERROR if crash else state.reason,
        failure=crash or (end.failure if end else None),
        detail=crash.message if crash else state.detail,
        plan=plan,
        lineage=progress.lineage,
        cursor=progress.cursor,
        total_samples=progress.total_samples,
        num_current=_num_training(plan, statuses),
        has_trained=progress.has_trained,
        num_asked=num_asked(state.sizing, direction) if state.has_trained else max(want, direction.num_offered),
        size_reason=state.sizing.why,
        batch_reasons=tuple(filter(None, (state.adapting.why, state.sharing.why))),
        exchange_reason="" if plan is None else compressing.why_stays(state.compressing, plan),
        topology=None if plan is None else racks.known(state, plan),
        forecast=state.forecast,
        num_pending=sum(f.heard_s is None for f in state.workers.values()),
        workers=tuple(_view(state, s, plan, parts) for s in statuses),
        records=pending.records,
        logs=pending.logs,
        timeline=pending.timeline,
        checkpoints=pending.checkpoints,
        spans=pending.spans,
    )


def _plan_in_force(state: ControllerState) -> Plan | None:
    """The highest plan that somebody trains under; a newcomer that waits for its plan's boundary does not yet."""
    held = [f.status for f in state.workers.values() if f.status is not None and f.status.plan is not None]
    trained = [s.plan for s in held if s.phase is not Phase.RENDEZVOUS]
    return max([p for p in trained or [s.plan for s in held] if p], key=lambda p: p.id, default=state.plan)


def _num_training(plan: Plan | None, statuses: list[WorkerStatus]) -> int:
    if plan is None:
        return 0
    members = [s for s in statuses if plan.member(s.worker_id) is not None and s.phase in TRAINING_PHASES]
    return sum(s.plan is None or s.plan.id <= plan.id for s in members)


def _view(state: ControllerState, status: WorkerStatus, plan: Plan | None, parts: Mapping[str, int]) -> WorkerView:
    member = plan.member(status.worker_id) if plan else None
    build, footprint = status.build, status.footprint
    most_bytes = state.spec.resources.memory_bytes or (footprint.limit_bytes if footprint else None)
    # The newest span may have just begun; with the one before it there are some seconds of steps.
    spans = [s for s in status.spans[-2:] if member is not None and s.rank == member.rank]
    step_s = sum(s.step_s for s in spans)
    return WorkerView(
        worker_id=status.worker_id,
        rank=member.rank if member else None,
        node_id=build.node_id if build else "",
        pid=build.pid if build else 0,
        phase=status.phase,
        phase_age_s=status.phase_age_s,
        memory_bytes=status.memory_bytes,
        device=build.device if build else "",
        micro_size=status.micro_size,
        gpu_utilisation=status.gpu_utilisation,
        part=parts.get(status.worker_id),
        busy_share=sum(s.data_s + s.compute_s + s.optimizer_s for s in spans) / step_s if step_s else None,
        data_share=sum(s.data_s for s in spans) / step_s if step_s else None,
        waiting_share=sum(s.exposed_s for s in spans) / step_s if step_s else None,
        memory_share=status.memory_bytes / most_bytes if most_bytes else None,
        wire_bytes_per_s=state.sharing.wire_bytes_per_s if member else None,
        wire_share=sharing.wire_share(state.sharing) if member else None,
        footprint=footprint,
        rack_label=build.rack if build else "",
        reading=status.reading,
    )
