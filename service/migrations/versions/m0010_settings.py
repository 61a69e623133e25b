"""What was ordered of a running job, another rate, batch or state, a checkpoint; and of the trials of populations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Jobs so far train as their specs say."""
    op.add_column("jobs", sa.Column("settings", sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("saves", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("trials", sa.Column("course", sa.Text(), nullable=False, server_default="{}"))
