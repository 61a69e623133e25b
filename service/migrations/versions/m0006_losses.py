"""The index of losses holds every kind of row that may name lost workers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Exchange the index."""
    op.drop_index("ix_timeline_losses", table_name="timeline")
    is_loss = sa.text("kind IN ('worker_lost', 'restore', 'start', 'failure', 'batch')")
    op.create_index(
        "ix_timeline_losses", "timeline", ["time"], unique=False, sqlite_where=is_loss, postgresql_where=is_loss
    )
