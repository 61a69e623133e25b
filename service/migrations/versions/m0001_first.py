"""The first tables, and the one row about the installation."""

from __future__ import annotations

import secrets
import time

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make all tables and name the installation."""
    _create_access()
    _create_jobs()
    _create_telemetry()
    _create_logs()
    _create_nodes()
    installation = sa.table("installation", *(sa.column(name) for name in _FIRST_ROW))
    op.bulk_insert(
        installation,
        [
            {
                **_FIRST_ROW,
                "id": f"concertina-{secrets.token_hex(8)}",
                "page_secret": secrets.token_bytes(32),
                "created_at": time.time(),
            }
        ],
    )


_FIRST_ROW = {
    "one": 1,
    "id": "",
    "page_secret": b"",
    "created_at": 0.0,
    "change": 0,
    "fence": 0,
    "lease_until": 0.0,
    "cluster_changed": 0,
}


def _create_access() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("principal", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("body_sha256", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("principal", "scope", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_created_at"), "idempotency_keys", ["created_at"], unique=False)
    op.create_table(
        "installation",
        sa.Column("one", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("page_secret", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("change", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("leader", sa.String(length=128), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.Column("heartbeat_at", sa.Double(), nullable=True),
        sa.Column("cluster", sa.Text(), nullable=True),
        sa.Column("cluster_at", sa.Double(), nullable=True),
        sa.Column("cluster_changed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("one", name=op.f("pk_installation")),
    )
    op.create_table(
        "login_links",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_login_links")),
    )
    op.create_table(
        "tokens",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_tokens")),
    )


def _create_jobs() -> None:
    op.create_table(
        "bundles",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("touched_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_bundles")),
        sa.UniqueConstraint("sha256", name=op.f("uq_bundles_sha256")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("bundle_id", sa.String(length=48), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.Column("goal", sa.String(length=16), nullable=False),
        sa.Column("min_workers", sa.Integer(), nullable=False),
        sa.Column("max_workers", sa.Integer(), nullable=False),
        sa.Column("pinned_workers", sa.Integer(), nullable=True),
        sa.Column("scale_actor", sa.String(length=64), nullable=False),
        sa.Column("scale_reason", sa.Text(), nullable=False),
        sa.Column("restart_after", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("num_current", sa.Integer(), nullable=False),
        sa.Column("num_desired", sa.Integer(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("total_samples", sa.BigInteger(), nullable=True),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("eval_values", sa.Text(), nullable=False),
        sa.Column("samples_per_s", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("queued_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("observed_at", sa.Double(), nullable=True),
        sa.Column("worker_s", sa.Double(), nullable=False),
        sa.Column("explanation", sa.Text(), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("observed", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["bundle_id"], ["bundles.id"], name=op.f("fk_jobs_bundle_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_bundle_id"), "jobs", ["bundle_id"], unique=False)
    op.create_index(op.f("ix_jobs_changed"), "jobs", ["changed"], unique=False)
    op.create_index("ix_jobs_name_id", "jobs", ["name", "id"], unique=False)
    op.create_index("ix_jobs_state_id", "jobs", ["state", "id"], unique=False)
    op.create_table(
        "events",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("source", sa.String(length=16), nullable=True),
        sa.Column("target", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_events_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "seq", name=op.f("pk_events")),
    )
    op.create_table(
        "job_labels",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("key", sa.String(length=63), nullable=False),
        sa.Column("value", sa.String(length=256), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_labels_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "key", name=op.f("pk_job_labels")),
    )
    op.create_index("ix_job_labels_key_value", "job_labels", ["key", "value", "job_id"], unique=False)


def _create_telemetry() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("path", sa.String(length=200), nullable=False),
        sa.Column("info", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_checkpoints_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "path", name=op.f("pk_checkpoints")),
    )
    op.create_table(
        "lineages",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("lineage", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("first_round", sa.BigInteger(), nullable=False),
        sa.Column("last_round", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_lineages_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "attempt", "lineage", name=op.f("pk_lineages")),
    )
    op.create_table(
        "points",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("lineage", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("round", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("cursor", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("is_skipped", sa.Boolean(), nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.Column("values", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_points_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "attempt", "lineage", "round", name=op.f("pk_points")),
    )
    op.create_index("ix_points_job_id_changed", "points", ["job_id", "changed"], unique=False)
    op.create_index(
        "ix_points_skipped",
        "points",
        ["job_id"],
        unique=False,
        sqlite_where=sa.text("is_skipped"),
        postgresql_where=sa.text("is_skipped"),
    )
    op.create_table(
        "timeline",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("before", sa.Text(), nullable=False),
        sa.Column("after", sa.Text(), nullable=False),
        sa.Column("cost_s", sa.Double(), nullable=True),
        sa.Column("steps_lost", sa.BigInteger(), nullable=True),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_timeline_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "seq", name=op.f("pk_timeline")),
    )
    op.create_index("ix_timeline_job_id_attempt_key", "timeline", ["job_id", "attempt", "key"], unique=True)
    op.create_index("ix_timeline_job_id_changed", "timeline", ["job_id", "changed"], unique=False)
    is_loss = sa.text("kind = 'worker_lost'")
    op.create_index(
        "ix_timeline_losses", "timeline", ["time"], unique=False, sqlite_where=is_loss, postgresql_where=is_loss
    )


def _create_logs() -> None:
    op.create_table(
        "log_chunks",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("worker_id", sa.String(length=64), nullable=False),
        sa.Column("offset", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_log_chunks_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "attempt", "worker_id", "offset", name=op.f("pk_log_chunks")),
    )
    op.create_index("ix_log_chunks_job_id_changed", "log_chunks", ["job_id", "changed"], unique=False)
    op.create_index("ix_log_chunks_job_id_position", "log_chunks", ["job_id", "position"], unique=False)
    op.create_table(
        "log_workers",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("worker_id", sa.String(length=64), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_log_workers_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "attempt", "worker_id", name=op.f("pk_log_workers")),
    )


def _create_nodes() -> None:
    op.create_table(
        "node_marks",
        sa.Column("node_id", sa.String(length=64), nullable=False),
        sa.Column("duty", sa.String(length=16), nullable=False),
        sa.Column("actor", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("node_id", name=op.f("pk_node_marks")),
    )
    op.create_table(
        "cluster_events",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("node_id", sa.String(length=64), nullable=True),
        sa.Column("actor", sa.String(length=64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_cluster_events")),
    )
