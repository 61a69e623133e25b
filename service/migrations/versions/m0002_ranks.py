"""What rounds cost each rank over time, for the heat map of a job's page."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "ranks",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("begin", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("worker_id", sa.String(length=64), nullable=False),
        sa.Column("width_s", sa.Integer(), nullable=False),
        sa.Column("num_rounds", sa.BigInteger(), nullable=False),
        sa.Column("step_s", sa.Double(), nullable=False),
        sa.Column("data_s", sa.Double(), nullable=False),
        sa.Column("compute_s", sa.Double(), nullable=False),
        sa.Column("exposed_s", sa.Double(), nullable=False),
        sa.Column("optimizer_s", sa.Double(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("gpu_utilisation", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_ranks_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "begin", "rank", "attempt", "worker_id", name=op.f("pk_ranks")),
    )
