"""The tables. Times are Unix seconds, documents JSON text; what orders all changes is ``changed``.

Portable between SQLite and PostgreSQL. ``migrations/`` builds the same tables; a test compares them.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    bindparam,
)

from service.states import ENDED_STATES
from service.store.configuration_tables import configuration_versions as configuration_versions
from service.store.configuration_tables import configurations as configurations
from service.store.configuration_tables import promotion_runs as promotion_runs
from service.store.configuration_tables import promotions as promotions
from service.store.deletion_table import deletions as deletions
from service.store.metadata import metadata as metadata

VERSION_TABLE = "concertina_version"
REVISION = "0016"
"""The migration that makes these tables."""


def _job_column() -> Column[str]:
    return Column("job_id", String(32), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)


installation = Table(
    "installation",
    metadata,
    Column("one", Integer, primary_key=True, autoincrement=False),  # always 1
    Column("id", String(64), nullable=False),
    Column("page_secret", LargeBinary, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("change", BigInteger, nullable=False),  # the number of the last change
    Column("fence", BigInteger, nullable=False),
    Column("leader", String(128)),
    Column("lease_until", Double, nullable=False),
    Column("heartbeat_at", Double),
    Column("storage", Text),  # where its mark was last left
    Column("cluster", Text),
    Column("cluster_at", Double),
    Column("cluster_changed", BigInteger, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("kind", String(16), nullable=False),  # admin | session
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
)

login_links = Table(
    "login_links",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("expires_at", Double, nullable=False),
)

bundles = Table(
    "bundles",
    metadata,
    Column("id", String(48), primary_key=True),
    Column("sha256", String(64), nullable=False, unique=True),
    Column("key", String(128), nullable=False),  # of its bytes in storage; of no others, ever
    Column("size_bytes", BigInteger, nullable=False),
    Column("files", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("touched_at", Double, nullable=False),  # last upload of the same bytes
)

uploads = Table(
    "uploads",
    metadata,
    Column("key", String(128), primary_key=True),
    Column("begun_at", Double, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(63), nullable=False),
    Column("spec", Text, nullable=False),
    Column("bundle_id", String(48), ForeignKey("bundles.id"), index=True),
    Column("state", String(16), nullable=False),
    Column("reason", String(32)),
    Column("version", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False, index=True),
    Column("goal", String(16), nullable=False),
    Column("min_workers", Integer, nullable=False),
    Column("max_workers", Integer, nullable=False),
    Column("pinned_workers", Integer),
    Column("scale_actor", String(64), nullable=False),
    Column("scale_reason", Text, nullable=False),
    Column("settings", Text),  # the newest order to change learning rate, batch or state
    Column("saves", Integer, nullable=False),  # checkpoints that others asked for
    Column("until", BigInteger),  # the line, in samples, at which it stands still for a verdict
    Column("restart_after", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("term", Integer, nullable=False),
    Column("num_current", Integer, nullable=False),
    Column("num_desired", Integer, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("total_samples", BigInteger),
    Column("loss", Double),
    Column("eval_values", Text, nullable=False),
    Column("samples_per_s", Double),
    Column("created_at", Double, nullable=False),
    Column("queued_at", Double, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("observed_at", Double),
    Column("worker_s", Double, nullable=False),
    Column("explanation", Text),
    Column("failure", Text),
    Column("observed", Text, nullable=False),
)
Index("ix_jobs_state_id_name", jobs.c.state, jobs.c.id, jobs.c.name)
Index("ix_jobs_name_id", jobs.c.name, jobs.c.id)
Index("ix_jobs_state_queued_at_id", jobs.c.state, jobs.c.queued_at, jobs.c.id)
# Written out in the statement, else SQLite would not use the index of what they have spent.
HAS_ENDED = jobs.c.state.in_(bindparam("ended", sorted(ENDED_STATES), expanding=True, literal_execute=True))
Index(
    "ix_jobs_spent", jobs.c.state, jobs.c.worker_s, jobs.c.samples, sqlite_where=HAS_ENDED, postgresql_where=HAS_ENDED
)

job_labels = Table(
    "job_labels",
    metadata,
    _job_column(),
    Column("key", String(63), primary_key=True),
    Column("value", String(256), nullable=False),
)
Index("ix_job_labels_key_value", job_labels.c.key, job_labels.c.value, job_labels.c.job_id)

events = Table(
    "events",
    metadata,
    _job_column(),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("time", Double, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("source", String(16)),
    Column("target", String(16), nullable=False),
    Column("reason", String(32)),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("principal", String(64), primary_key=True),
    Column("scope", String(64), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("body_sha256", String(64), nullable=False),
    Column("made_id", String(32), nullable=False),  # kept when what it made is deleted: the key stays spent
    Column("created_at", Double, nullable=False, index=True),
)

lineages = Table(
    "lineages",
    metadata,
    _job_column(),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("lineage", Integer, primary_key=True, autoincrement=False),
    Column("first_round", BigInteger, nullable=False),
    Column("last_round", BigInteger, nullable=False),
)

points = Table(
    "points",
    metadata,
    _job_column(),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("lineage", Integer, primary_key=True, autoincrement=False),
    Column("round", BigInteger, primary_key=True, autoincrement=False),
    Column("generation", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("cursor", BigInteger, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("time", Double, nullable=False),
    Column("is_skipped", Boolean, nullable=False),
    Column("changed", BigInteger, nullable=False),
    Column("values", Text, nullable=False),
)
Index("ix_points_job_id_changed", points.c.job_id, points.c.changed)

stretches = Table(
    "stretches",
    metadata,
    _job_column(),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("lineage", Integer, primary_key=True, autoincrement=False),
    Column("width", BigInteger, primary_key=True, autoincrement=False),  # rounds
    Column("begin", BigInteger, primary_key=True, autoincrement=False),  # the first round, a multiple of the width
    Column("values", Text, nullable=False),
)

timeline = Table(
    "timeline",
    metadata,
    _job_column(),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("attempt", Integer, nullable=False),
    Column("key", String(200), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("time", Double, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("actor", String(64), nullable=False),
    Column("reason", Text, nullable=False),
    Column("before", Text, nullable=False),
    Column("after", Text, nullable=False),
    Column("cost_s", Double),
    Column("steps_lost", BigInteger),
    Column("changed", BigInteger, nullable=False),
)
# Rows that may name lost workers. Written out in the statement, else SQLite would not use the index.
IS_LOSS = timeline.c.kind.in_(
    bindparam("kinds", ["worker_lost", "restore", "start", "failure", "batch"], expanding=True, literal_execute=True)
)
Index("ix_timeline_job_id_attempt_key", timeline.c.job_id, timeline.c.attempt, timeline.c.key, unique=True)
Index("ix_timeline_job_id_changed", timeline.c.job_id, timeline.c.changed)
Index("ix_timeline_kind", timeline.c.kind)
Index("ix_timeline_losses", timeline.c.time, sqlite_where=IS_LOSS, postgresql_where=IS_LOSS)

log_workers = Table(
    "log_workers",
    metadata,
    _job_column(),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("worker_id", String(64), primary_key=True),
    Column("rank", Integer),
    Column("size_bytes", BigInteger, nullable=False),
)

log_chunks = Table(
    "log_chunks",
    metadata,
    _job_column(),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("worker_id", String(64), primary_key=True),
    Column("offset", BigInteger, primary_key=True, autoincrement=False),
    Column("position", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("rank", Integer),
    Column("time", Double, nullable=False),
    Column("changed", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
Index("ix_log_chunks_job_id_position", log_chunks.c.job_id, log_chunks.c.position)
Index("ix_log_chunks_job_id_changed", log_chunks.c.job_id, log_chunks.c.changed)

checkpoints = Table(
    "checkpoints",
    metadata,
    _job_column(),
    Column("path", String(200), primary_key=True),
    Column("info", Text, nullable=False),
)

node_marks = Table(
    "node_marks",
    metadata,
    Column("node_id", String(64), primary_key=True),
    Column("name", String(255), nullable=False, server_default=""),
    Column("duty", String(16), nullable=False),
    Column("actor", String(64), nullable=False),
    Column("reason", Text, nullable=False),
    Column("since", Double, nullable=False),
)

cluster_events = Table(
    "cluster_events",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("time", Double, nullable=False),
    Column("node_id", String(64)),
    Column("actor", String(64), nullable=False),
    Column("text", Text, nullable=False),
)

ranks = Table(
    "ranks",
    metadata,
    _job_column(),
    Column("begin", BigInteger, primary_key=True, autoincrement=False),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("worker_id", String(64), primary_key=True),
    Column("width_s", Integer, nullable=False),
    Column("num_rounds", BigInteger, nullable=False),
    Column("step_s", Double, nullable=False),
    Column("data_s", Double, nullable=False),
    Column("compute_s", Double, nullable=False),
    Column("exposed_s", Double, nullable=False),
    Column("optimizer_s", Double, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("gpu_utilisation", Double),
)

schedules = Table(
    "schedules",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(63), nullable=False),
    Column("spec", Text, nullable=False),
    Column("time_zone", String(64), nullable=False),
    Column("bundle_id", String(48), ForeignKey("bundles.id"), index=True),
    Column("state", String(16), nullable=False),
    Column("reason", Text),
    Column("version", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False, index=True),
    Column("next_nominal", Double),
    Column("next_at", Double, index=True),
    Column("num_failures", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
)
Index("ix_schedules_name", schedules.c.name, unique=True)

schedule_runs = Table(
    "schedule_runs",
    metadata,
    Column("schedule_id", String(32), ForeignKey("schedules.id", ondelete="CASCADE"), primary_key=True),
    Column("nominal_at", Double, primary_key=True, autoincrement=False),
    Column("outcome", String(16), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("child_id", String(32)),  # kept when the child is deleted
    Column("reason", Text),
    Column("fired_at", Double, nullable=False),
    Column("is_open", Boolean, nullable=False),  # waits to start, or its child has not been seen to end
)
Index("ix_schedule_runs_child_id", schedule_runs.c.child_id, unique=True)
Index("ix_schedule_runs_is_open_schedule_id", schedule_runs.c.is_open, schedule_runs.c.schedule_id)

sweeps = Table(
    "sweeps",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(63), nullable=False),
    Column("spec", Text, nullable=False),
    Column("metric", String(200), nullable=False),
    Column("bundle_id", String(48), ForeignKey("bundles.id"), index=True),
    Column("state", String(16), nullable=False),
    Column("reason", Text),
    Column("version", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False, index=True),
    Column("num_trials", Integer, nullable=False),
    Column("term", Integer, nullable=False),
    Column("importance", Text, nullable=False),
    Column("ran_s", Double, nullable=False),
    Column("runs_since", Double),
    Column("created_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("origin_name", String(63)),  # of the configuration that its job was taken from
    Column("origin_version", BigInteger),
    Column("promote_to", String(63)),  # what its winner is to be held against as soon as it has ended
)
Index("ix_sweeps_state_id", sweeps.c.state, sweeps.c.id)
Index("ix_sweeps_promote_to", sweeps.c.promote_to)

trials = Table(
    "trials",
    metadata,
    Column("sweep_id", String(32), ForeignKey("sweeps.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("params", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("wish", String(16), nullable=False),
    Column("is_held", Boolean, nullable=False),  # its job was paused by the sweep
    Column("must_retry", Boolean, nullable=False),  # it failed, and is tried again once there is room
    Column("value", Double),
    Column("reports", Text, nullable=False),
    Column("job_id", String(32), nullable=False),  # kept when the job is deleted
    Column("reason", Text),
    Column("seconds", Double, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("changed", BigInteger, nullable=False),
    Column("seen", BigInteger, nullable=False),  # the change up to which its job's points were read
    Column("is_open", Boolean, nullable=False),  # has not ended
    Column("course", Text, nullable=False),  # what a population made of it
)
Index("ix_trials_job_id", trials.c.job_id, unique=True)
Index("ix_trials_is_open_sweep_id", trials.c.is_open, trials.c.sweep_id)
Index("ix_trials_sweep_id_state_value", trials.c.sweep_id, trials.c.state, trials.c.value)
