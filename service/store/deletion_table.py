"""The table of jobs that users have deleted: of those that are not gone yet, and of those whose files may be left."""

from __future__ import annotations

from sqlalchemy import Column, Double, String, Table

from service.store.metadata import metadata

deletions = Table(
    "deletions",
    metadata,
    Column("job_id", String(32), primary_key=True),  # it outlives the job's own row
    Column("asked_at", Double, nullable=False),
)
