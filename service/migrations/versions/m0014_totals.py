"""Indexes hold what sums over all jobs and their timelines are made of, so that no table is read whole for them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Make the indexes."""
    op.create_index("ix_timeline_kind", "timeline", ["kind"], unique=False)
    is_ended = sa.text("state IN ('CANCELLED', 'FAILED', 'SUCCEEDED')")
    op.create_index(
        "ix_jobs_spent",
        "jobs",
        ["state", "worker_s", "samples"],
        unique=False,
        sqlite_where=is_ended,
        postgresql_where=is_ended,
    )
