"""The index by state holds names too, so that a search reads no wide rows."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Exchange the index."""
    op.create_index("ix_jobs_state_id_name", "jobs", ["state", "id", "name"], unique=False)
    op.drop_index("ix_jobs_state_id", table_name="jobs")
