"""Schedules and their runs as users see them, from the store's records. Pure."""

from __future__ import annotations

from service.documents import Document
from service.schedule_records import RunRow, ScheduleRow
from service.times import rfc3339


def schedule_document(row: ScheduleRow) -> Document:
    """The schedule."""
    return {
        "id": row.id,
        "name": row.name,
        "state": row.state,
        "reason": row.reason,
        "spec": row.document,
        "next_time": rfc3339(row.upcoming.nominal_at) if row.upcoming else None,
        "failures_in_a_row": row.num_failures,
        "created_at": rfc3339(row.created_at),
        "etag": row.etag,
    }


def run_document(run: RunRow) -> Document:
    """What became of one nominal time."""
    return {
        "nominal_time": rfc3339(run.nominal_at),
        "fired_at": rfc3339(run.fired_at),
        "outcome": run.outcome,
        "kind": run.kind,
        "child_id": run.child_id,
        "child_state": run.child_state,
        "child_lives": run.child_lives,
        "reason": run.reason,
    }
