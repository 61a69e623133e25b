"""Between database rows and records; JSON texts are written here so that all look alike."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Row

from service.records import (
    Autoscaling,
    BundleRow,
    ClusterView,
    EventRow,
    Explanation,
    JobRow,
    LogPiece,
    NodeView,
    Scale,
    StoredCluster,
    TimelineEntry,
)
from service.states import JobState
from workers.errors import Failure, Reason
from workers.plan import TimelineKind
from workers.run_settings import Donor, RunSettings
from workers.status import CheckpointInfo, RunGoal, TimelineRow

MAX_FAILURE_CHARS = 4000
"""Of a traceback; its last frames. The whole text is in the job's log."""


def dumps(value: object) -> str:
    """Compact JSON text in ASCII, so that any database can hold it; NaN and infinities become null."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_without_nan(value), separators=(",", ":"), allow_nan=False)


def _without_nan(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return value


def clean(text: str) -> str:
    """Without what a database or a page cannot take: half surrogate pairs and zero characters."""
    return text.encode("utf-8", errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def _scale_of(row: Row[Any] | SimpleNamespace) -> Scale:
    return Scale(
        min=row.min_workers,
        max=row.max_workers,
        pinned=row.pinned_workers,
        actor=row.scale_actor,
        reason=row.scale_reason,
    )


def job_of(row: Row[Any] | SimpleNamespace) -> JobRow:
    """A row of ``jobs``, read or about to be inserted."""
    return JobRow(
        id=row.id,
        name=row.name,
        spec_json=row.spec,
        state=JobState(row.state),
        reason=Reason(row.reason) if row.reason else None,
        version=row.version,
        changed=row.changed,
        goal=RunGoal(row.goal),
        scale=_scale_of(row),
        settings=_settings_of(row.settings),
        saves=row.saves,
        until=row.until,
        restart_after=row.restart_after,
        attempt=row.attempt,
        term=row.term,
        num_current=row.num_current,
        num_desired=row.num_desired,
        samples=row.samples,
        total_samples=row.total_samples,
        loss=row.loss,
        eval_values=json.loads(row.eval_values),
        samples_per_s=row.samples_per_s,
        created_at=row.created_at,
        queued_at=row.queued_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        observed_at=row.observed_at,
        worker_s=row.worker_s,
        explanation=_explanation_of(row.explanation),
        failure=_failure_of(row.failure),
        observed=json.loads(row.observed),
    )


def explanation_text(explanation: Explanation | None) -> str | None:
    """The column's text; None clears it."""
    if explanation is None:
        return None
    remedy = None if explanation.remedy is None else clean(explanation.remedy)
    details = [clean(detail) for detail in explanation.details]
    return dumps({"summary": clean(explanation.summary), "details": details, "remedy": remedy})


def _explanation_of(text: str | None) -> Explanation | None:
    if text is None:
        return None
    value = json.loads(text)
    return Explanation(summary=value["summary"], details=tuple(value["details"]), remedy=value["remedy"])


def failure_text(failure: Failure | None) -> str | None:
    """The column's text, with the end of a long traceback."""
    if failure is None:
        return None
    texts = {
        "type": clean(failure.type),
        "message": clean(failure.message),
        "traceback": clean(failure.traceback[-MAX_FAILURE_CHARS:]),
    }
    return dumps({**asdict(failure), **texts})


def _settings_of(text: str | None) -> RunSettings | None:
    if text is None:
        return None
    value = json.loads(text)
    return RunSettings(**{**value, "donor": Donor(**value["donor"]) if value["donor"] else None})


def _failure_of(text: str | None) -> Failure | None:
    if text is None:
        return None
    value = json.loads(text)
    return Failure(**{**value, "reason": Reason(value["reason"])})


def event_of(row: Row[Any]) -> EventRow:
    """A row of ``events``."""
    return EventRow(
        seq=row.seq,
        time=row.time,
        attempt=row.attempt,
        source=JobState(row.source) if row.source else None,
        to=JobState(row.target),
        reason=Reason(row.reason) if row.reason else None,
    )


def timeline_of(row: Row[Any]) -> TimelineEntry:
    """A row of ``timeline``."""
    return TimelineEntry(
        seq=row.seq,
        attempt=row.attempt,
        changed=row.changed,
        key=row.key,
        kind=row.kind,
        time=row.time,
        step=row.step,
        actor=row.actor,
        reason=row.reason,
        before=json.loads(row.before),
        after=json.loads(row.after),
        cost_s=row.cost_s,
        steps_lost=row.steps_lost,
    )


def timeline_row_of(row: Row[Any]) -> TimelineRow:
    """A row of ``timeline`` as its controller told it."""
    return TimelineRow(
        key=row.key,
        kind=TimelineKind(row.kind),
        time=row.time,
        step=row.step,
        actor=row.actor,
        reason=row.reason,
        before=json.loads(row.before),
        after=json.loads(row.after),
        cost_s=row.cost_s,
        steps_lost=row.steps_lost,
    )


def log_of(row: Row[Any]) -> LogPiece:
    """A row of ``log_chunks``."""
    return LogPiece(
        position=row.position,
        attempt=row.attempt,
        worker_id=row.worker_id,
        rank=row.rank,
        time=row.time,
        data=bytes(row.data),
        changed=row.changed,
    )


def bundle_of(row: Row[Any]) -> BundleRow:
    """A row of ``bundles``."""
    return BundleRow(
        id=row.id,
        sha256=row.sha256,
        key=row.key,
        size_bytes=row.size_bytes,
        files=row.files,
        created_at=row.created_at,
    )


def checkpoint_of(text: str) -> CheckpointInfo:
    """The text of ``checkpoints.info``."""
    return CheckpointInfo(**json.loads(text))


def cluster_of(row: Row[Any]) -> StoredCluster | None:
    """The cluster columns of ``installation``; None before the first look."""
    if row.cluster is None:
        return None
    value: Mapping[str, Any] = json.loads(row.cluster)
    nodes = tuple(NodeView(**node) for node in value["nodes"])
    view = ClusterView(**{**value, "nodes": nodes, "autoscaling": _autoscaling_of(value.get("autoscaling"))})
    return StoredCluster(view=view, observed_at=row.cluster_at, changed=row.cluster_changed)


def _autoscaling_of(value: Mapping[str, Any] | None) -> Autoscaling | None:
    if value is None:
        return None
    # The first releases that stored it knew nothing of what was refused.
    lists = {name: tuple(value.get(name, ())) for name in ("failures", "refused", "wanted_by")}
    return Autoscaling(**{**value, **lists})
