"""An index holds the line of jobs that wait, so that its first ones are found without the others."""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Make the index."""
    op.create_index("ix_jobs_state_queued_at_id", "jobs", ["state", "queued_at", "id"], unique=False)
