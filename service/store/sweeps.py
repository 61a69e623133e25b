"""Sweeps as users see and command them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from sqlalchemy import ColumnElement, Connection, insert, select, update

from service.configuration_records import Origin
from service.ids import IdSource
from service.promotion_records import PromotionStanding, PromotionState
from service.records import ListPart
from service.states import Move, Verb, command
from service.store.configurations import fetch_configuration
from service.store.database import Database, Write
from service.store.experience import experience_with
from service.store.keys import IdempotencyKey, KeySpentError, made_before, spend
from service.store.list_parts import part_of
from service.store.moves import fetch_job
from service.store.port import StoreError
from service.store.promotion_rows import fetch_promoted, insert_promotion, latest_bytes, standings_of, stop_promotions
from service.store.references import check_references
from service.store.schema import schedule_runs, sweeps, trials
from service.store.statements import text_bytes
from service.store.sweep_rows import (
    counts_of,
    fetch_compared,
    fetch_sweep,
    fetch_trials,
    moved,
    samples_per_epoch,
    sweep_of,
    trial_of,
    update_sweep,
)
from service.sweep_records import Experience, SweepRow, SweepState, SweepView, TrialCounts, TrialRow, Wish
from service.unfinished_sweeps import TELL_UNFINISHED, best_of_unfinished
from tuning.pruning import rungs_for
from tuning.spec import SweepSpec
from tuning.trial import TrialState
from workers.spec import JobSpec


class UnknownSweepError(StoreError):
    """A spec names an earlier sweep that is not there; the argument is its id."""


class UnknownConfigurationError(StoreError):
    """A spec promotes to a configuration that is not there; the argument is its name."""


class OtherMetricError(StoreError):
    """An earlier sweep was over another metric; the arguments are its id and that metric."""


@dataclass(frozen=True, slots=True)
class Created:
    """``is_new`` is False for the repetition of an earlier call."""

    sweep: SweepRow
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What lists show beside a sweep: its counts, its best trial (see ``best_document``), its latest promotion."""

    counts: TrialCounts
    best: TrialRow | None
    promotion: PromotionStanding | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFilter:
    """Which sweeps a list shows; None means all. ``search`` is the beginning of an id or a part of a name.

    ``schedule`` is the id of the one that started them.
    """

    state: SweepState | None = None
    search: str | None = None
    schedule: str | None = None


class SweepStore:
    """The API's side of sweeps. What is guarded by a row raises StaleRowError when anybody wrote it since."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ids = IdSource()

    async def create(
        self, spec: SweepSpec, job: JobSpec, key: IdempotencyKey | None = None, origin: Origin | None = None
    ) -> Created:
        """Store a sweep that is RUNNING; ``job`` is that of any of its trials. Durable when this returns.

        Raises UnknownReferenceError, UnknownSweepError, OtherMetricError, UnknownConfigurationError,
        KeyReusedError, KeySpentError; nothing is stored then.
        """

        def work(write: Write) -> Created:
            if key is not None and (made_id := made_before(write, key)) is not None:
                earlier = fetch_sweep(write.conn, made_id)
                if earlier is None:
                    raise KeySpentError(made_id)
                return Created(earlier, is_new=False)
            made = insert_sweep(write, self._ids.sweep_id(write.now_s), spec, job, origin)
            if key is not None:
                spend(write, key, made.id)
            return Created(made, is_new=True)

        return await self._database.write(work)

    async def check_references(self, spec: SweepSpec, job: JobSpec) -> None:
        """Raises what ``create`` would raise now."""
        await self._database.read(lambda conn: check_sweep(conn, spec, job))

    async def sweep(self, sweep_id: str) -> SweepRow | None:
        """One sweep, or None."""
        return await self._database.read(lambda conn: fetch_sweep(conn, sweep_id))

    async def view(self, sweep_id: str) -> SweepView | None:
        """One sweep with all its trials, each with the reports by which they are compared, or None.

        Those are the first at each rung, and the last.
        """

        def work(conn: Connection) -> SweepView | None:
            sweep = fetch_sweep(conn, sweep_id)
            if sweep is None:
                return None
            length = samples_per_epoch(conn, sweep_id)
            found = tuple(fetch_compared(conn, sweep_id, rungs_for(sweep.spec, length)))
            promoted = fetch_promoted(conn, sweep_id, sweep.document["limits"], self._database.now_s)
            return SweepView(sweep=sweep, trials=found, samples_per_epoch=length, promoted=promoted)

        return await self._database.read(work)

    async def page(self, wanted: SweepFilter, limit: int, before_id: str | None = None) -> ListPart[SweepRow]:
        """At most ``limit`` sweeps, newest first, those older than ``before_id``; fewer where their specs are large."""
        chosen = select(sweeps).order_by(sweeps.c.id.desc())
        if before_id is not None:
            chosen = chosen.where(sweeps.c.id < before_id)
        if wanted.state is not None:
            chosen = chosen.where(sweeps.c.state == wanted.state)
        if wanted.search:
            is_named = sweeps.c.name.contains(wanted.search, autoescape=True)
            chosen = chosen.where(is_named | sweeps.c.id.startswith(wanted.search, autoescape=True))
        if wanted.schedule is not None:
            started = select(schedule_runs.c.child_id).where(schedule_runs.c.schedule_id == wanted.schedule)
            chosen = chosen.where(sweeps.c.id.in_(started))

        def work(conn: Connection) -> ListPart[SweepRow]:
            found = part_of(conn, chosen, shown_bytes(conn.dialect.name), limit)
            return ListPart([sweep_of(row) for row in found.rows], found.has_more)

        return await self._database.read(work)

    async def trials(
        self, sweep_id: str, limit: int, after: int = -1, state: TrialState | None = None
    ) -> ListPart[TrialRow]:
        """At most ``limit`` trials by number, those above ``after``; fewer where their texts are large."""
        chosen = select(trials).where(trials.c.sweep_id == sweep_id, trials.c.number > after)
        if state is not None:
            chosen = chosen.where(trials.c.state == state)
        chosen = chosen.order_by(trials.c.number)

        def work(conn: Connection) -> ListPart[TrialRow]:
            found = part_of(conn, chosen, text_bytes(trials, conn.dialect.name), limit)
            return ListPart([trial_of(row) for row in found.rows], found.has_more)

        return await self._database.read(work)

    async def standings(self, rows: Sequence[SweepRow]) -> dict[str, Standing]:
        """What has become of these so far, by the sweep's id."""

        def work(conn: Connection) -> dict[str, Standing]:
            ids = [row.id for row in rows]
            counts, promoted = counts_of(conn, ids), standings_of(conn, ids)
            return {
                row.id: Standing(counts=counts[row.id], best=_best(conn, row), promotion=promoted.get(row.id))
                for row in rows
            }

        return await self._database.read(work)

    async def experience(self, job: JobSpec) -> Experience:
        """What recent jobs of the same code tell about such a job."""
        return await self._database.read(lambda conn: experience_with(conn, job))

    async def changed(self, after: int, upto: int) -> list[SweepRow]:
        """Sweeps that were written in these changes; each change of a trial writes its sweep as well."""
        chosen = select(sweeps).where(sweeps.c.changed > after, sweeps.c.changed <= upto)
        return await self._database.read(lambda conn: [sweep_of(row) for row in conn.execute(chosen)])

    async def move(self, sweep: SweepRow, to: SweepState, reason: str | None) -> SweepRow:
        """Another state; the leader brings the trials there. Raises StaleRowError."""

        def work(write: Write) -> SweepRow:
            if to is SweepState.STOPPED:
                return stop_sweep(write, sweep, reason)
            return update_sweep(write, sweep, moved(sweep, to, reason, write.now_s))

        return await self._database.write(work)

    async def extend(self, sweep: SweepRow, num_trials: int) -> SweepRow:
        """Allow more trials; one that had ended goes on. Raises StaleRowError."""

        def work(write: Write) -> SweepRow:
            columns = _going_on(write, sweep)
            return update_sweep(write, sweep, {**columns, "num_trials": num_trials})

        return await self._database.write(work)

    async def retry_failed(self, sweep: SweepRow) -> tuple[SweepRow, int]:
        """Let failed trials go on from their last checkpoints, once there is room, and how many there are.

        Those whose jobs are gone stay failed. Raises StaleRowError.
        """

        def work(write: Write) -> tuple[SweepRow, int]:
            num_retried = 0
            for trial in fetch_trials(write.conn, sweep.id):
                job = fetch_job(write.conn, trial.job_id) if trial.state is TrialState.FAILED else None
                if job is not None and isinstance(command(Verb.RETRY, job.state, job.attempt), Move):
                    _reopen(write, sweep.id, trial.number)
                    num_retried += 1
            if not num_retried:
                return sweep, 0
            return update_sweep(write, sweep, _going_on(write, sweep)), num_retried

        return await self._database.write(work)

    async def ask_promotion(self, sweep: SweepRow, name: str) -> SweepRow:
        """Let its winner be held against a configuration as soon as it has ended. Raises StaleRowError."""
        columns = {"promote_to": name, "version": sweep.version + 1}
        return await self._database.write(lambda write: update_sweep(write, sweep, columns))

    async def stop_promotion(self, sweep: SweepRow, reason: str) -> SweepRow:
        """Compare no further, and begin nothing; the leader ends the runs. Raises StaleRowError.

        One that was to begin is stopped as one that had: who asks again is told that it is.
        """
        return await self._database.write(lambda write: stop_promotion(write, sweep, reason))


def stop_sweep(write: Write, sweep: SweepRow, reason: str | None) -> SweepRow:
    """End one that has not, with what an earlier promotion of it compares. Raises StaleRowError."""
    stop_promotions(write, sweep.id, reason)
    return update_sweep(write, sweep, moved(sweep, SweepState.STOPPED, reason, write.now_s))


def stop_promotion(write: Write, sweep: SweepRow, reason: str) -> SweepRow:
    """See ``SweepStore.stop_promotion``. Raises StaleRowError."""
    stop_promotions(write, sweep.id, reason)
    if sweep.promote_to is not None:
        stopped = {"configuration": sweep.promote_to, "state": PromotionState.STOPPED, "reason": reason}
        insert_promotion(write, sweep.id, stopped)
    return update_sweep(write, sweep, {"promote_to": None, "version": sweep.version + 1})


@cache
def shown_bytes(dialect: str) -> ColumnElement[int]:
    """What is read to show a row of ``sweeps``: a promotion keeps the job of whoever it is held against."""
    return text_bytes(sweeps, dialect) + latest_bytes(dialect)


def check_sweep(conn: Connection, spec: SweepSpec, job: JobSpec) -> None:
    """Raises UnknownReferenceError, UnknownSweepError, OtherMetricError, UnknownConfigurationError."""
    for earlier in spec.warm_start:
        metric = conn.execute(select(sweeps.c.metric).where(sweeps.c.id == earlier)).scalar_one_or_none()
        if metric is None:
            raise UnknownSweepError(earlier)
        if metric != spec.metric:
            raise OtherMetricError(earlier, metric)
    if spec.promote is not None and fetch_configuration(conn, spec.promote) is None:
        raise UnknownConfigurationError(spec.promote)
    check_references(conn, job)


def insert_sweep(write: Write, sweep_id: str, spec: SweepSpec, job: JobSpec, origin: Origin | None = None) -> SweepRow:
    """A sweep that is RUNNING from now on. Raises as ``check_sweep``."""
    check_sweep(write.conn, spec, job)
    columns = {
        "id": sweep_id,
        "name": spec.name,
        "spec": spec.model_dump_json(),
        "metric": spec.metric,
        "bundle_id": job.bundle,
        "origin_name": None if origin is None else origin.name,
        "origin_version": None if origin is None else origin.version,
        "state": SweepState.RUNNING,
        "version": 1,
        "changed": write.change,
        "num_trials": spec.trials,
        "term": 0,
        "importance": "{}",
        "ran_s": 0.0,
        "runs_since": write.now_s,
        "created_at": write.now_s,
        "promote_to": spec.promote,
    }
    return sweep_of(write.conn.execute(insert(sweeps).values(columns).returning(sweeps)).one())


def _going_on(write: Write, sweep: SweepRow) -> dict[str, object]:
    """A paused sweep stays so; one that had ended runs, and what was to be promoted is as soon as it ends again."""
    if sweep.state in (SweepState.RUNNING, SweepState.PAUSED):
        return {"version": sweep.version + 1}
    latest = standings_of(write.conn, [sweep.id]).get(sweep.id)
    is_compared = latest is not None and latest.promotion.state is PromotionState.RUNNING
    begun = latest.promotion.configuration if latest is not None and is_compared else None
    promote_to = sweep.promote_to or begun or sweep.document["promote"]
    return {**moved(sweep, SweepState.RUNNING, None, write.now_s), "promote_to": promote_to}


def _reopen(write: Write, sweep_id: str, number: int) -> None:
    opened = {
        "state": TrialState.WAITING,
        "wish": Wish.RUN,
        "is_held": False,
        "must_retry": True,
        "reason": None,
        "finished_at": None,
        "is_open": True,
        "changed": write.change,
    }
    write.conn.execute(update(trials).where(trials.c.sweep_id == sweep_id, trials.c.number == number).values(opened))


def _best(conn: Connection, sweep: SweepRow) -> TrialRow | None:
    order = trials.c.value.desc() if sweep.document["mode"] == "max" else trials.c.value
    is_complete = (trials.c.sweep_id == sweep.id, trials.c.state == TrialState.COMPLETE)
    row = conn.execute(select(trials).where(*is_complete).order_by(order, trials.c.number).limit(1)).one_or_none()
    if row is not None:
        return trial_of(row)
    if sweep.state not in TELL_UNFINISHED:
        return None
    spec, length = sweep.spec, samples_per_epoch(conn, sweep.id)
    return best_of_unfinished(spec, fetch_compared(conn, sweep.id, rungs_for(spec, length)), length)
