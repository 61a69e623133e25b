"""What remains of a service, read from its database, storage and scratch: plain rows, without the service's own code.

Only this file knows the tables. It reads only, so it may run beside a live service.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

from service.folders import BUNDLES, JOBS, checkpoints_place, uploads_folder
from service.settings import Settings
from service.states import PLACED_STATES
from service.supervise.home import Home
from service.sweep_records import ENDED_SWEEPS
from tests.faults.reading import read_database
from workers.checkpoints import DRAFTS, checkpoint_names
from workers.scratch import LOCK
from workers.storage import PART_SUFFIX, Storage
from workers.storage_urls import open_storage


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
    """Which committed round a metric point is of; ``cursor`` samples are drawn after its own ``samples``.

    ``is_skipped``: nothing was updated, so that it bears the step of the round before it.
    """

    attempt: int
    lineage: int
    generation: int
    round: int
    step: int
    cursor: int = 0
    samples: int = 0
    is_skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One timeline row; ``after`` is JSON."""

    seq: int
    attempt: int
    key: str
    kind: str
    steps_lost: int | None
    after: str = "{}"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job with all its rows; ``checkpoints`` are registered ones, ``stored`` those in storage.

    ``unfinished`` are objects of saves there that did not come to their end.
    """

    id: str
    spec: Mapping[str, Any]
    state: str
    attempt: int
    term: int
    restart_after: int
    num_current: int
    events: tuple[Event, ...]
    points: tuple[PointKey, ...]
    timeline: tuple[Row, ...]
    checkpoints: frozenset[str]
    stored: frozenset[str]
    unfinished: frozenset[str] = frozenset()
    total_samples: int | None = None

    @property
    def steps(self) -> int:
        """How many optimizer steps the spec asks for."""
        return int(self.spec["steps"])

    @functools.cached_property
    def kept(self) -> list[tuple[tuple[int, int], int]]:
        """Checkpoints that are registered or stored, as (attempt, lineage) and step, where a point has their round."""
        steps = {(p.attempt, p.lineage, p.round): p.step for p in self.points}
        parts = [tuple(map(int, name.split("-")[:3])) for name in self.checkpoints | self.stored]
        return [((part[0], part[1]), steps[part]) for part in parts if part in steps]

    @functools.cached_property
    def taken_over(self) -> dict[tuple[int, int], int]:
        """Lineages that began with another job's state, by (attempt, lineage), and at how many samples."""
        rows = [(row.attempt, json.loads(row.after)) for row in self.timeline]
        return {(attempt, after["lineage"]): after["samples"] for attempt, after in rows if "donor" in after}

    @functools.cached_property
    def is_tuned(self) -> bool:
        """Whether samples count and not steps: so is its length given, or its batch was changed, or its state taken."""
        is_changed = any("global_batch" in json.loads(row.after) for row in self.timeline)
        return bool(self.taken_over) or is_changed or self.spec.get("steps") is None

    def samples_of(self, life: tuple[int, int], step: int) -> int:
        """Samples of one step: the spec's, or as the point of a tuned job says."""
        return self._samples.get((life, step), self.batch) if self.is_tuned else self.batch

    @functools.cached_property
    def _samples(self) -> dict[tuple[tuple[int, int], int], int]:
        return {((p.attempt, p.lineage), p.step): p.samples for p in self.points}

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
class Trial:
    """One trial of a sweep; ``params`` and ``course`` are JSON."""

    number: int
    state: str
    is_open: bool
    job_id: str
    params: str
    course: str = "{}"

    @property
    def point(self) -> str:
        """What it began with."""
        changes = json.loads(self.course).get("changes")
        return json.dumps(changes[0]["before"], separators=(",", ":")) if changes else self.params


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionRun:
    """One run of a promotion of a sweep's winner, and the state of the promotion."""

    number: int
    contender: int
    pair: int
    job_id: str
    is_open: bool
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One sweep with its trials in their order; ``promotions`` are the states of those of its winner, with their
    ``runs``, and ``promote_to`` is set where one is to begin at its end.
    """

    id: str
    state: str
    num_trials: int
    trials: tuple[Trial, ...]
    promote_to: str | None = None
    promotions: tuple[str, ...] = ()
    runs: tuple[PromotionRun, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether neither it, nor a trial, nor a promotion goes on, or is to come."""
        is_promoting = self.promote_to is not None or "RUNNING" in self.promotions
        has_open = any(part.is_open for part in (*self.trials, *self.runs))
        return self.state in ENDED_SWEEPS and not has_open and not is_promoting


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything of one service: ``keys`` maps idempotency keys to jobs, ``folders`` are those of jobs in storage.

    ``stray_bundles`` are the keys of bytes that no bundle and no upload has.

    ``installation`` is its id, Ray's namespace; ``fence`` counts the leader's leases. ``scheduled`` are the jobs
    and sweeps that runs of schedules name. ``scratch`` are folders of jobs by the place that they lie in: the empty
    locks beside them go by age. ``uploads`` are files that are, or were, being received. ``half_deleted`` are jobs
    whose deletion is noted, and of which there are rows all the same.
    """

    installation: str
    fence: int
    jobs: Mapping[str, Job]
    keys: Mapping[str, str]
    folders: frozenset[str]
    sweeps: Mapping[str, Sweep] = field(default_factory=dict)
    stray_bundles: frozenset[str] = frozenset()
    scheduled: frozenset[str] = frozenset()
    scratch: Mapping[str, frozenset[str]] = field(default_factory=dict)
    uploads: frozenset[str] = frozenset()
    half_deleted: frozenset[str] = frozenset()


def gather(settings: Settings, *homes: Path) -> Evidence:
    """Read all of it in one transaction of the database; ``homes`` are those of further replicas.

    What lies in storage and scratch is looked at after the rows, so that it may be ahead of them.
    """
    rows = read_database(settings.database_url, _rows_of_all)
    places = [place for home in (settings.home, *homes) for place in _scratch_places(home)]
    url = settings.storage_url
    jobs = {job_id: _job(row, open_storage(checkpoints_place(url, job_id))) for job_id, row in rows.jobs.items()}
    uploads = [file for home in (settings.home, *homes) for file in uploads_folder(home).glob("*")]
    return Evidence(
        installation=rows.installation,
        fence=rows.fence,
        jobs=jobs,
        keys=rows.keys,
        scheduled=rows.scheduled,
        sweeps=rows.sweeps,
        stray_bundles=frozenset(open_storage(url).keys(BUNDLES)) - rows.bundles,
        folders=frozenset(open_storage(url).folders(JOBS)),
        scratch={str(place): _names_in(place) for place in places},
        uploads=frozenset(str(file) for file in uploads),
        half_deleted=rows.half_deleted,
    )


def told_of(evidence: Evidence, job_id: str) -> str:
    """What has become of a job, in lines; empty where it is no job."""
    job = evidence.jobs.get(job_id)
    if job is None:
        return ""
    events = [f"  attempt {event.attempt}: {event.source} to {event.target}, {event.reason}" for event in job.events]
    rows = [f"  attempt {row.attempt}: {row.kind} {row.key}" for row in job.timeline]
    return "\n".join([f"{job.id}, term {job.term}, {len(job.points)} points", *events, *rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    installation: str
    fence: int
    jobs: Mapping[str, Mapping[str, Any]]
    keys: Mapping[str, str]
    scheduled: frozenset[str]
    sweeps: Mapping[str, Sweep]
    bundles: frozenset[str]
    half_deleted: frozenset[str]


_HALF_DELETED = "SELECT d.job_id FROM deletions d JOIN jobs j ON j.id = d.job_id"


def _rows_of_all(connection: Connection) -> _Rows:
    def rows(query: str) -> list[dict[str, Any]]:
        return [dict(row) for row in connection.execute(text(query)).mappings()]

    (installation,) = rows("SELECT id, fence FROM installation")
    made = rows("SELECT key, made_id FROM idempotency_keys WHERE scope IN ('POST /jobs', 'POST /sweeps')")
    started = rows("SELECT child_id FROM schedule_runs WHERE outcome = 'STARTED'")
    return _Rows(
        installation=installation["id"],
        fence=installation["fence"],
        jobs={row["id"]: row | _rows_of_job(connection, row["id"]) for row in rows("SELECT * FROM jobs ORDER BY id")},
        keys={row["key"]: row["made_id"] for row in made},
        scheduled=frozenset(row["child_id"] for row in started),
        sweeps={
            row["id"]: _sweep(connection, row) for row in rows("SELECT id, state, num_trials, promote_to FROM sweeps")
        },
        bundles=frozenset(row["key"] for row in rows("SELECT key FROM bundles UNION SELECT key FROM uploads")),
        half_deleted=frozenset(row["job_id"] for row in rows(_HALF_DELETED)),
    )


def _sweep(connection: Connection, row: Mapping[str, Any]) -> Sweep:
    query = f"SELECT {', '.join(Trial.__slots__)} FROM trials WHERE sweep_id = :id ORDER BY number"
    trials = connection.execute(text(query), {"id": row["id"]}).mappings()
    states = connection.execute(text("SELECT state FROM promotions WHERE sweep_id = :id"), {"id": row["id"]})
    compared = (
        "SELECT r.number, r.contender, r.pair, r.job_id, r.is_open, p.state FROM promotion_runs r "
        "JOIN promotions p ON p.sweep_id = r.sweep_id AND p.number = r.number WHERE r.sweep_id = :id"
    )
    runs = connection.execute(text(compared), {"id": row["id"]}).mappings()
    return Sweep(
        **row,
        promotions=tuple(states.scalars()),
        trials=tuple(Trial(**{**trial, "is_open": bool(trial["is_open"])}) for trial in trials),
        runs=tuple(PromotionRun(**{**run, "is_open": bool(run["is_open"])}) for run in runs),
    )


def _rows_of_job(connection: Connection, job_id: str) -> dict[str, Any]:
    def rows(kind: Any, table: str, order: str) -> tuple[Any, ...]:
        # Names of our own dataclasses and tables, no text from outside.
        query = f"SELECT {', '.join(kind.__slots__)} FROM {table} WHERE job_id = :job_id ORDER BY {order}"
        return tuple(kind(**row) for row in connection.execute(text(query), {"job_id": job_id}).mappings())

    checkpoints = connection.execute(text("SELECT path FROM checkpoints WHERE job_id = :id"), {"id": job_id})
    return {
        "events": rows(Event, "events", "seq"),
        "points": rows(PointKey, "points", "attempt, lineage, round"),
        "timeline": rows(Row, "timeline", "seq"),
        "checkpoints": frozenset(checkpoints.scalars()),
    }


def _job(row: Mapping[str, Any], storage: Storage) -> Job:
    names = ("id", "state", "attempt", "term", "restart_after", "num_current", "total_samples")
    parts = ("events", "points", "timeline", "checkpoints")
    stored = storage.keys()
    return Job(
        spec=json.loads(row["spec"]),
        **{name: row[name] for name in (*names, *parts)},
        stored=frozenset(checkpoint_names(storage)),
        unfinished=frozenset(key for key in stored if key.startswith(DRAFTS) or key.endswith(PART_SUFFIX)),
    )


def _scratch_places(home: Path) -> list[Path]:
    """Where this machine's workers keep what is a job's, by its id."""
    folder = Home(home).remembered_temp_dir()
    return [] if folder is None else [folder / "scratch" / kind for kind in ("logs", "output")]


def _names_in(folder: Path) -> frozenset[str]:
    """Of a place in scratch, but for locks."""
    names = (path.name for path in folder.iterdir() if path.suffix != LOCK) if folder.is_dir() else ()
    return frozenset(names)
