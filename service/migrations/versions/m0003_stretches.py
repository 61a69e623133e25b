"""Roll-ups of metrics: of each stretch of rounds the ends and extremes of each series."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

# What they say follows from the points alone: whoever changes their form later writes all of them anew anyway.
from service.store.stretches import roll_up_all

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the table, and fill it from the points that are there."""
    op.create_table(
        "stretches",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("lineage", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("width", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("begin", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("values", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_stretches_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "attempt", "lineage", "width", "begin", name=op.f("pk_stretches")),
    )
    roll_up_all(op.get_bind())
