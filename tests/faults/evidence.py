"""What remains of a service, read from its database file and storage: plain rows, without the service's own code.

Only this file knows the tables. It opens the file read-only, so it may run beside a live service.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.folders import JOBS
from service.settings import Settings
from service.states import PLACED_STATES
from workers.checkpoints import checkpoint_names
from workers.local_storage import LocalStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One transition of a job."""

    seq: int
    attempt: int
    source: str | None
    target: str
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointKey:
    """Which committed round a metric point is of."""

    attempt: int
    lineage: int
    generation: int
    round: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One timeline row."""

    seq: int
    attempt: int
    key: str
    kind: str
    steps_lost: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job with all its rows; ``checkpoints`` are registered ones, ``stored`` those in storage."""

    id: str
    spec: Mapping[str, Any]
    state: str
    attempt: int
    restart_after: int
    num_current: int
    events: tuple[Event, ...]
    points: tuple[PointKey, ...]
    timeline: tuple[Row, ...]
    checkpoints: frozenset[str]
    stored: frozenset[str]

    @property
    def steps(self) -> int:
        """How many optimizer steps the spec asks for."""
        return int(self.spec["steps"])

    def end_of(self, attempt: int) -> Event | None:
        """The transition by which an attempt was placed no longer, None while it is."""
        ends = (e for e in self.events if e.source in PLACED_STATES and e.target not in PLACED_STATES)
        return next((e for e in ends if e.attempt == attempt), None)

    @property
    def num_samples(self) -> int | None:
        """Samples of an epoch, where the job's configuration tells."""
        value = self.spec["config"].get("num_samples")
        return None if value is None else int(value)

    @property
    def batch(self) -> int:
        """Samples of one step."""
        return int(self.spec["batch"]["global_size"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything of one service: ``keys`` maps idempotency keys to jobs, ``folders`` are those of jobs in storage.

    ``installation`` is its id, Ray's namespace; ``fence`` counts the leader's leases. ``scheduled`` are the jobs
    that runs of schedules name.
    """

    installation: str
    fence: int
    jobs: Mapping[str, Job]
    keys: Mapping[str, str]
    folders: frozenset[str]
    scheduled: frozenset[str] = frozenset()


def gather(settings: Settings) -> Evidence:
    """Read all of it in one transaction of the database."""
    file = settings.database_file
    assert file is not None, "the oracle reads SQLite"
    root = Path(settings.storage_url) / JOBS
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=30) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("BEGIN")
        ids = [row["id"] for row in connection.execute("SELECT id FROM jobs ORDER BY id")]
        jobs = {job_id: _job(connection, job_id, root / job_id) for job_id in ids}
        installation, fence = connection.execute("SELECT id, fence FROM installation").fetchone()
        made = connection.execute("SELECT key, made_id FROM idempotency_keys WHERE scope = 'POST /jobs'")
        keys = {row["key"]: row["made_id"] for row in made}
        started = connection.execute("SELECT child_id FROM schedule_runs WHERE outcome = 'STARTED'")
        scheduled = frozenset(row["child_id"] for row in started)
    connection.close()
    folders = frozenset(path.name for path in root.iterdir()) if root.is_dir() else frozenset()
    return Evidence(installation=installation, fence=fence, jobs=jobs, keys=keys, folders=folders, scheduled=scheduled)


def _job(connection: sqlite3.Connection, job_id: str, folder: Path) -> Job:
    row = connection.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
    return Job(
        id=job_id,
        spec=json.loads(row["spec"]),
        **{name: row[name] for name in ("state", "attempt", "restart_after", "num_current")},
        events=tuple(Event(**r) for r in _rows(connection, Event, "events", job_id, "seq")),
        points=tuple(PointKey(**r) for r in _rows(connection, PointKey, "points", job_id, "attempt, lineage, round")),
        timeline=tuple(Row(**r) for r in _rows(connection, Row, "timeline", job_id, "seq")),
        checkpoints=frozenset(
            r["path"] for r in connection.execute("SELECT path FROM checkpoints WHERE job_id = ?", (job_id,))
        ),
        stored=frozenset(checkpoint_names(LocalStorage(folder / "checkpoints"))),
    )


def _rows(connection: sqlite3.Connection, kind: Any, table: str, job_id: str, order: str) -> list[dict[str, Any]]:
    columns = ", ".join(kind.__slots__)
    # Names of our own dataclasses and tables, no text from outside.
    query = f"SELECT {columns} FROM {table} WHERE job_id = ? ORDER BY {order}"
    return [dict(row) for row in connection.execute(query, (job_id,))]
