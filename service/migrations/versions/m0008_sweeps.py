"""Sweeps and their trials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Make the tables."""
    _create_sweeps()
    _create_trials()


def _create_sweeps() -> None:
    op.create_table(
        "sweeps",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("metric", sa.String(length=200), nullable=False),
        sa.Column("bundle_id", sa.String(length=48), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.Column("num_trials", sa.Integer(), nullable=False),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("importance", sa.Text(), nullable=False),
        sa.Column("ran_s", sa.Double(), nullable=False),
        sa.Column("runs_since", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["bundle_id"], ["bundles.id"], name=op.f("fk_sweeps_bundle_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sweeps")),
    )
    op.create_index(op.f("ix_sweeps_bundle_id"), "sweeps", ["bundle_id"], unique=False)
    op.create_index(op.f("ix_sweeps_changed"), "sweeps", ["changed"], unique=False)
    op.create_index("ix_sweeps_state_id", "sweeps", ["state", "id"], unique=False)


def _create_trials() -> None:
    op.create_table(
        "trials",
        sa.Column("sweep_id", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("params", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("wish", sa.String(length=16), nullable=False),
        sa.Column("is_held", sa.Boolean(), nullable=False),
        sa.Column("must_retry", sa.Boolean(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("reports", sa.Text(), nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.Column("seen", sa.BigInteger(), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweeps.id"], name=op.f("fk_trials_sweep_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("sweep_id", "number", name=op.f("pk_trials")),
    )
    op.create_index("ix_trials_job_id", "trials", ["job_id"], unique=True)
    op.create_index("ix_trials_is_open_sweep_id", "trials", ["is_open", "sweep_id"], unique=False)
    op.create_index("ix_trials_sweep_id_state_value", "trials", ["sweep_id", "state", "value"], unique=False)
