"""The shapes that users see (contract, part 3), from the store's records. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from service.cost import Prices, amount, is_upper_bound
from service.racks import racks_document
from service.records import EventRow, Explanation, JobRow, Point, TimelineEntry
from service.states import ENDED_STATES, PLACED_STATES, JobState
from service.times import rfc3339
from workers.spec import JobSpec
from workers.status import CheckpointInfo

Document: TypeAlias = dict[str, Any]


def job_document(job: JobRow, prices: Prices) -> Document:
    """The job."""
    spec = job.spec
    return {
        "id": job.id,
        "name": job.name,
        "state": job.state,
        "reason": job.reason,
        "spec": job.document,
        "progress": _progress(job, spec),
        "workers": {
            "min": job.scale.min,
            "max": job.scale.max,
            "current": job.num_current,
            "desired": desired_workers(job),
        },
        "racks": racks_document(job.observed) if job.state in PLACED_STATES else None,
        "attempt": job.attempt,
        "created_at": rfc3339(job.created_at),
        "started_at": rfc3339(job.started_at),
        "finished_at": rfc3339(job.finished_at),
        "cost": {
            "worker_s": round(job.worker_s, 3),
            "amount": amount(job.worker_s, spec.resources, prices),
            "currency": prices.currency,
            "is_upper_bound": is_upper_bound(spec.resources, prices),
        },
        "etag": job.etag,
    }


def desired_workers(job: JobRow) -> int:
    """How many workers the job is meant to have: the pinned number, else what the service steers to.

    Before it is placed that is the least it can start with; an ended job wants none.
    """
    if job.state in ENDED_STATES or job.state is JobState.CANCELLING:
        return 0
    if job.scale.pinned is not None:
        return job.scale.pinned
    if job.state is JobState.PAUSED:
        return 0
    wanted = job.num_desired if job.state in PLACED_STATES else 0
    return max(job.scale.min, min(wanted, job.scale.max))


def _progress(job: JobRow, spec: JobSpec) -> Document:
    total = job.total_samples if job.total_samples is not None else known_total(spec)
    batch = spec.batch.global_size
    steps = None if total is None else math.ceil(total / batch)
    is_complete = total is not None and job.samples >= total
    eta_s = job.left_s if job.state is JobState.RUNNING else None
    return {
        "step": steps if is_complete else job.samples // batch,
        "steps": steps,
        "samples": job.samples,
        "loss": job.loss,
        "eval": dict(job.eval_values),
        "samples_per_s": job.samples_per_s,
        "eta_s": None if eta_s is None else round(eta_s, 3),
    }


def known_total(spec: JobSpec) -> int | None:
    """All samples of the job where the spec alone tells them; ``epochs`` need the dataset's length."""
    return None if spec.epochs is not None else spec.total_samples(0)


def event_document(event: EventRow) -> Document:
    """A state transition."""
    return {
        "seq": event.seq,
        "time": rfc3339(event.time),
        "attempt": event.attempt,
        "from": event.source,
        "to": event.to,
        "reason": event.reason,
    }


def timeline_document(entry: TimelineEntry) -> Document:
    """Something that changed while the job ran."""
    return {
        "seq": entry.seq,
        "step": entry.step,
        "time": rfc3339(entry.time),
        "kind": entry.kind,
        "actor": entry.actor,
        "reason": entry.reason,
        "before": dict(entry.before),
        "after": dict(entry.after),
        "cost_s": entry.cost_s,
        "steps_lost": entry.steps_lost,
    }


def point_document(point: Point, keys: frozenset[str] | None = None) -> Document:
    """Telemetry of one step; only ``keys``, where given."""
    return {"step": point.step, "time": rfc3339(point.time), "values": chosen(point.values, keys)}


def chosen(values: Mapping[str, float], keys: frozenset[str] | None) -> dict[str, float]:
    """Of the values, those that are asked for."""
    return dict(values) if keys is None else {name: value for name, value in values.items() if name in keys}


def checkpoint_documents(found: Iterable[CheckpointInfo]) -> list[Document]:
    """Checkpoints by step, oldest first; of two with one step the newer one counts."""
    by_step = {info.step: info for info in sorted(found, key=lambda info: info.order)}
    return [
        {
            "step": info.step,
            "size_bytes": info.size_bytes,
            "metric": info.metric,
            "final": info.is_final,
            "created_at": rfc3339(info.created_at),
        }
        for info in sorted(by_step.values(), key=lambda info: info.order)
    ]


def explanation_document(explanation: Explanation) -> Document:
    """Why it waits or failed."""
    return {"summary": explanation.summary, "details": list(explanation.details), "remedy": explanation.remedy}
