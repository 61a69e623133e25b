"""Configurations with their history, which sweep began from which, and what is promoted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Make the tables."""
    _create_configurations()
    _create_versions()
    op.add_column("sweeps", sa.Column("origin_name", sa.String(length=63), nullable=True))
    op.add_column("sweeps", sa.Column("origin_version", sa.BigInteger(), nullable=True))
    op.add_column("sweeps", sa.Column("promote_to", sa.String(length=63), nullable=True))
    op.create_index("ix_sweeps_promote_to", "sweeps", ["promote_to"], unique=False)
    _create_promotions()
    _create_runs()


def _create_configurations() -> None:
    op.create_table(
        "configurations",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("bundle_id", sa.String(length=48), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["bundle_id"], ["bundles.id"], name=op.f("fk_configurations_bundle_id")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_configurations")),
    )
    op.create_index(op.f("ix_configurations_bundle_id"), "configurations", ["bundle_id"], unique=False)


def _create_versions() -> None:
    op.create_table(
        "configuration_versions",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("replaced_at", sa.Double(), nullable=False),
        sa.Column("replaced_by", sa.String(length=64), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["name"], ["configurations.name"], name=op.f("fk_configuration_versions_name"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("name", "version", name=op.f("pk_configuration_versions")),
    )


def _create_promotions() -> None:
    op.create_table(
        "promotions",
        sa.Column("sweep_id", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("configuration", sa.String(length=63), nullable=False),
        sa.Column("base_version", sa.BigInteger(), nullable=False),
        sa.Column("bundle_id", sa.String(length=48), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("contenders", sa.Text(), nullable=False),
        sa.Column("seeds", sa.Text(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=True),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["bundle_id"], ["bundles.id"], name=op.f("fk_promotions_bundle_id")),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweeps.id"], name=op.f("fk_promotions_sweep_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("sweep_id", "number", name=op.f("pk_promotions")),
    )
    op.create_index(op.f("ix_promotions_bundle_id"), "promotions", ["bundle_id"], unique=False)
    op.create_index("ix_promotions_state_sweep_id", "promotions", ["state", "sweep_id"], unique=False)


def _create_runs() -> None:
    op.create_table(
        "promotion_runs",
        sa.Column("sweep_id", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("contender", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("pair", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["sweep_id", "number"],
            ["promotions.sweep_id", "promotions.number"],
            name=op.f("fk_promotion_runs_sweep_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("sweep_id", "number", "contender", "pair", name=op.f("pk_promotion_runs")),
    )
    op.create_index("ix_promotion_runs_job_id", "promotion_runs", ["job_id"], unique=True)
    op.create_index("ix_promotion_runs_is_open_sweep_id", "promotion_runs", ["is_open", "sweep_id"], unique=False)
