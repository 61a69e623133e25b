"""What a snapshot says about a job's row: progress, last values, cost, and the view for pages. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from service.exchange import figures
from service.records import JobRow
from service.states import PLACED_STATES
from service.store.rows import clean, dumps
from workers.plan import Plan
from workers.rack_words import dispute_in_words, in_words
from workers.status import JobSnapshot, RoundRecord, RunPhase

EVAL_PREFIX = "eval."
NUM_RECORDS_OF_SPEED = 20
_LEAST_EXCHANGING = 2

MOST_UNTOLD_S = 600.0
"""Beside what samples tell there are starts and evaluations; so long a micro-batch may last by default, too."""


def observed_columns(job: JobRow, snapshot: JobSnapshot, now_s: float, passed_s: float | None) -> dict[str, Any]:
    """Columns of ``jobs`` that follow from the snapshot.

    Worker seconds grow by the workers held since the last look, so that a service that was away
    counts what ran meanwhile. ``passed_s`` is how long that was by a monotonic clock, None where nobody has
    seen it pass: then it is the difference of the times of the two looks, as far as samples bear it out.
    """
    records = sorted(snapshot.records, key=lambda record: record.key)
    columns: dict[str, Any] = {
        # A last snapshot may come after the move that took the job off the cluster.
        "num_current": snapshot.num_current if job.state in PLACED_STATES else 0,
        "observed_at": now_s,
        "observed": dumps(
            _view(snapshot)
            | {
                "exchange": _exchange(job, records),
                "counted": _counted(job, records),
                "last_racks": _last_racks(job, snapshot),
            }
        ),
        "worker_s": job.worker_s
        + _held_s(job, now_s, passed_s, _most_s(job, snapshot.cursor, records))
        + _begun_s(job, snapshot, now_s, records),
        "eval_values": dumps(_latest_eval(job, records)),
    }
    if snapshot.total_samples is not None:
        columns["total_samples"] = snapshot.total_samples
    if snapshot.num_current or records or snapshot.outcome is not None:
        # Before the state is loaded a worker's cursor is 0, and progress would seem to jump back.
        columns["samples"] = snapshot.cursor
    losses = [record.values["loss"] for record in records if math.isfinite(record.values.get("loss", math.nan))]
    if losses:
        columns["loss"] = losses[-1]
    if records and job.state in PLACED_STATES:
        columns["samples_per_s"] = _speed(records) or job.samples_per_s
    elif snapshot.phase is RunPhase.RECOVERING:
        columns["samples_per_s"] = None
    return columns


def _held_s(job: JobRow, now_s: float, passed_s: float | None, most_s: float) -> float:
    if job.observed_at is None:
        return 0.0
    if passed_s is None:
        passed_s = min(max(0.0, now_s - job.observed_at), most_s)
    return passed_s * len(job.observed.get("workers", ()))


def _begun_s(job: JobRow, snapshot: JobSnapshot, now_s: float, records: Sequence[RoundRecord]) -> float:
    """Of workers that no look has shown yet, since the first step that they tell of: a short trial has one look.

    Those that have left by now were there until their last step, and no clock counts for more than the steps bear out.
    """
    if job.observed_at is None or job.observed.get("workers") or not records:
        return 0.0
    begun = records[0].time - records[0].values.get("step_s", 0.0)
    trained_s = max(0.0, records[-1].time - begun)
    if not snapshot.workers:
        return trained_s * (0 if snapshot.plan is None else snapshot.plan.num_members)
    return min(max(0.0, now_s - max(job.observed_at, begun)), trained_s + MOST_UNTOLD_S) * len(snapshot.workers)


def _most_s(job: JobRow, cursor: int, records: Sequence[RoundRecord]) -> float:
    """What may have passed since the last look, by the samples drawn meanwhile at the speed known."""
    speed = (_speed(records) if records else None) or job.samples_per_s
    trained_s = max(0, cursor - job.samples) / speed if speed else 0.0
    # Twice, as between rounds there are evaluations and saves.
    return 2 * trained_s + MOST_UNTOLD_S


def _latest_eval(job: JobRow, records: Sequence[RoundRecord]) -> dict[str, float]:
    values = dict(job.eval_values)
    for record in records:
        for key, value in record.values.items():
            if key.startswith(EVAL_PREFIX) and math.isfinite(value):
                values[key.removeprefix(EVAL_PREFIX)] = value
    return values


def _speed(records: Sequence[RoundRecord]) -> float | None:
    """Samples a second over the last records: as the workers measured it, else by the time between commits."""
    last = records[-NUM_RECORDS_OF_SPEED:]
    told = [v for r in last if math.isfinite(v := r.values.get("samples_per_s", math.nan))]
    if told:
        return sum(told) / len(told)
    passed_s = last[-1].time - last[0].time
    return sum(record.samples for record in last[1:]) / passed_s if passed_s > 0 else None


def _counted(job: JobRow, records: Sequence[RoundRecord]) -> float:
    """The share of the samples drawn of late that count: less than all where a batch is worth less (``adascale``)."""
    last = [r for r in records[-NUM_RECORDS_OF_SPEED:] if r.lineage == records[-1].lineage]
    drawn = sum(record.samples for record in last[1:])
    known: float = job.observed.get("counted", 1.0)
    if not drawn or last[-1].cursor <= last[0].cursor:
        return known
    return min(1.0, (last[-1].cursor - last[0].cursor) / drawn)  # above it where records between are missing


def _exchange(job: JobRow, records: Sequence[RoundRecord]) -> Mapping[str, float]:
    """What the newest steps that are known tell."""
    told: Mapping[str, float] = job.observed.get("exchange", {})
    return figures(record.values for record in records[-NUM_RECORDS_OF_SPEED:]) if records else told


def _last_racks(job: JobRow, snapshot: JobSnapshot) -> Sequence[int]:
    """Of the last group that had somebody to exchange with: one worker, or none, does not undo how steps travelled."""
    topology = snapshot.topology
    if topology is None or len(topology.racks) < _LEAST_EXCHANGING:
        told: Sequence[int] = job.observed.get("last_racks", ())
        return told
    return topology.racks


def _view(snapshot: JobSnapshot) -> dict[str, Any]:
    return {
        "detail": clean(snapshot.detail),
        "num_pending": snapshot.num_pending,
        "size_reason": clean(snapshot.size_reason),
        "batch_reasons": [clean(reason) for reason in snapshot.batch_reasons],
        "exchange_reason": clean(snapshot.exchange_reason),
        "racks": _racks(snapshot),
        "forecast": None if snapshot.forecast is None else asdict(snapshot.forecast),
        "plan": None if snapshot.plan is None else _plan(snapshot.plan),
        "workers": [asdict(view) for view in snapshot.workers],
    }


def _racks(snapshot: JobSnapshot) -> dict[str, Any] | None:
    topology, plan = snapshot.topology, snapshot.plan
    if topology is None or plan is None:
        return None
    views = {view.rank: view for view in snapshot.workers if view.rank is not None}
    by_rank = sorted(plan.members, key=lambda member: member.rank)
    return {
        "found_by": topology.found_by.value,
        "told": in_words(topology),
        "racks": {member.worker_id: topology.racks[member.rank] for member in by_rank},
        "inside": {"bytes_per_s": topology.inside_bytes_per_s, "latency_s": topology.inside_latency_s},
        "across": {"bytes_per_s": topology.across_bytes_per_s, "latency_s": topology.across_latency_s},
        "disputes": [
            {
                "worker_ids": [by_rank[rank].worker_id for rank in one.ranks],
                "node_ids": [views[rank].node_id if rank in views else "" for rank in one.ranks],
                "is_one_label": one.is_one_label,
                "bytes_per_s": one.bytes_per_s,
                "latency_s": one.latency_s,
                "told": dispute_in_words(one, topology.labels, lambda rank: f"worker {by_rank[rank].worker_id}"),
            }
            for one in topology.disputes
        ],
    }


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "id": list(plan.id),
        "generation": plan.generation,
        "global_batch": plan.global_batch,
        "lr": asdict(plan.lr),
        "precision": asdict(plan.precision),
        "exchange": asdict(plan.exchange) | {"options": dict(plan.exchange.options)},
        "failures": plan.failures.num,
    }
