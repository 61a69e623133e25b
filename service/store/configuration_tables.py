"""The tables of configurations, and of the runs that hold a sweep's winner against one."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    String,
    Table,
    Text,
)

from service.store.metadata import metadata

configurations = Table(
    "configurations",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("spec", Text, nullable=False),
    Column("bundle_id", String(48), ForeignKey("bundles.id"), index=True),
    Column("version", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
)

configuration_versions = Table(
    "configuration_versions",
    metadata,
    Column("name", String(63), ForeignKey("configurations.name", ondelete="CASCADE"), primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("spec", Text, nullable=False),
    Column("replaced_at", Double, nullable=False),
    Column("replaced_by", String(64), nullable=False),
    Column("evidence", Text),
)

promotions = Table(
    "promotions",
    metadata,
    Column("sweep_id", String(32), ForeignKey("sweeps.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("configuration", String(63), nullable=False),  # kept when the configuration is deleted
    Column("base_version", BigInteger, nullable=False),
    Column("bundle_id", String(48), ForeignKey("bundles.id"), index=True),  # of the incumbent, while it is compared
    Column("state", String(16), nullable=False),
    Column("reason", Text),
    Column("contenders", Text, nullable=False),
    Column("seeds", Text, nullable=False),
    Column("evidence", Text),
    Column("version", BigInteger),
    Column("changed", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("finished_at", Double),
)
Index("ix_promotions_state_sweep_id", promotions.c.state, promotions.c.sweep_id)

promotion_runs = Table(
    "promotion_runs",
    metadata,
    Column("sweep_id", String(32), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("contender", Integer, primary_key=True, autoincrement=False),  # a trial's number, -1 for the incumbent
    Column("pair", Integer, primary_key=True, autoincrement=False),
    Column("job_id", String(32), nullable=False),  # kept when the job is deleted
    Column("score", Double),
    Column("seconds", Double, nullable=False),
    Column("is_open", Boolean, nullable=False),  # has not ended
    ForeignKeyConstraint(
        ["sweep_id", "number"],
        ["promotions.sweep_id", "promotions.number"],
        name="fk_promotion_runs_sweep_id",
        ondelete="CASCADE",
    ),
)
Index("ix_promotion_runs_job_id", promotion_runs.c.job_id, unique=True)
Index("ix_promotion_runs_is_open_sweep_id", promotion_runs.c.is_open, promotion_runs.c.sweep_id)
