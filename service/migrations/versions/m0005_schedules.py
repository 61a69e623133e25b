"""Schedules and their runs; keys that make a call safe to repeat stand for more than jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the tables, and rename the column."""
    op.execute("ALTER TABLE idempotency_keys RENAME COLUMN job_id TO made_id")
    _create_schedules()
    _create_runs()


def _create_schedules() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("time_zone", sa.String(length=64), nullable=False),
        sa.Column("bundle_id", sa.String(length=48), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.Column("next_nominal", sa.Double(), nullable=True),
        sa.Column("next_at", sa.Double(), nullable=True),
        sa.Column("num_failures", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["bundle_id"], ["bundles.id"], name=op.f("fk_schedules_bundle_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
    )
    op.create_index(op.f("ix_schedules_bundle_id"), "schedules", ["bundle_id"], unique=False)
    op.create_index(op.f("ix_schedules_changed"), "schedules", ["changed"], unique=False)
    op.create_index(op.f("ix_schedules_next_at"), "schedules", ["next_at"], unique=False)
    op.create_index("ix_schedules_name", "schedules", ["name"], unique=True)


def _create_runs() -> None:
    op.create_table(
        "schedule_runs",
        sa.Column("schedule_id", sa.String(length=32), nullable=False),
        sa.Column("nominal_at", sa.Double(), autoincrement=False, nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("child_id", sa.String(length=32), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("fired_at", sa.Double(), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["schedule_id"], ["schedules.id"], name=op.f("fk_schedule_runs_schedule_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("schedule_id", "nominal_at", name=op.f("pk_schedule_runs")),
    )
    op.create_index("ix_schedule_runs_child_id", "schedule_runs", ["child_id"], unique=True)
    op.create_index("ix_schedule_runs_is_open_schedule_id", "schedule_runs", ["is_open", "schedule_id"], unique=False)
