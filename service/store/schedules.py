"""Schedules as users see and change them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select

from service.firing import first_upcoming
from service.ids import IdSource
from service.records import ListPart
from service.schedule_records import Due, Firing, RunRow, ScheduleRow, ScheduleState, Upcoming
from service.schedule_spec import ScheduleSpec
from service.store.bundles import Deleted, drop_bundle
from service.store.children import children_of
from service.store.database import Database, Write
from service.store.keys import IdempotencyKey, KeySpentError, made_before, spend
from service.store.list_parts import part_of
from service.store.port import StaleRowError, StoreError
from service.store.schedule_rows import (
    WITH_LIVING,
    due_of,
    fetch_schedule,
    runs_of,
    schedule_of,
    update_guarded,
    write_firing,
)
from service.store.schema import schedule_runs, schedules
from service.store.statements import text_bytes
from service.targets import Target


class NameTakenError(StoreError):
    """Another schedule has that name; the argument is its id."""


@dataclass(frozen=True, slots=True)
class Created:
    """``is_new`` is False for the repetition of an earlier call."""

    schedule: ScheduleRow
    is_new: bool


@dataclass(frozen=True, slots=True)
class Replaced:
    """``bundle_key`` is set when nothing needs the bytes of the bundle before any more."""

    schedule: ScheduleRow
    bundle_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFilter:
    """Which schedules a list shows; None means all. ``search`` is the beginning of an id or a part of a name."""

    state: ScheduleState | None = None
    search: str | None = None


class ScheduleStore:
    """The API's side of schedules. What is guarded by a row raises StaleRowError when anybody wrote it since."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ids = IdSource()

    async def create(self, spec: ScheduleSpec, target: Target, key: IdempotencyKey | None = None) -> Created:
        """Store a schedule that is ACTIVE; durable when this returns.

        Raises NameTakenError, KeyReusedError, KeySpentError, and what the ``check`` of its children raises;
        nothing is stored then.
        """

        def work(write: Write) -> Created:
            if key is not None and (made_id := made_before(write, key)) is not None:
                earlier = fetch_schedule(write.conn, made_id)
                if earlier is None:
                    raise KeySpentError(made_id)
                return Created(earlier, is_new=False)
            _check_name(write.conn, spec.name, except_id="")
            schedule_id = self._ids.schedule_id(write.now_s)
            columns = {
                **_spec_columns(write.conn, spec, target),
                **_upcoming_columns(first_upcoming(spec, schedule_id, write.now_s)),
                "id": schedule_id,
                "state": ScheduleState.ACTIVE,
                "version": 1,
                "changed": write.change,
                "num_failures": 0,
                "created_at": write.now_s,
            }
            row = write.conn.execute(insert(schedules).values(columns).returning(schedules)).one()
            if key is not None:
                spend(write, key, schedule_id)
            return Created(schedule_of(row), is_new=True)

        return await self._database.write(work)

    async def check_references(self, target: Target) -> None:
        """Raises what ``create`` would raise for the target now."""
        await self._database.read(lambda conn: children_of(target).check(conn, target))

    async def replace(
        self, schedule: ScheduleRow, spec: ScheduleSpec, target: Target, upcoming: Upcoming | None
    ) -> Replaced:
        """Exchange the spec; one that had ended goes on.

        Raises StaleRowError, NameTakenError, and what the ``check`` of its children raises.
        """

        def work(write: Write) -> Replaced:
            _check_name(write.conn, spec.name, except_id=schedule.id)
            is_paused = schedule.state is ScheduleState.PAUSED
            columns = {
                **_spec_columns(write.conn, spec, target),
                **_upcoming_columns(None if is_paused else upcoming),
                "state": ScheduleState.PAUSED if is_paused else ScheduleState.ACTIVE,
                "version": schedule.version + 1,
            }
            before = _bundle_id(write.conn, schedule.id)
            replaced = update_guarded(write, schedule, columns)
            return Replaced(replaced, None if before is None else drop_bundle(write, before))

        return await self._database.write(work)

    async def pause(self, schedule: ScheduleRow, reason: str) -> ScheduleRow:
        """It starts nothing any more. Raises StaleRowError."""
        columns = {
            "state": ScheduleState.PAUSED,
            "reason": reason,
            "version": schedule.version + 1,
            **_upcoming_columns(None),
        }
        return await self._database.write(lambda write: update_guarded(write, schedule, columns))

    async def resume(self, schedule: ScheduleRow, upcoming: Upcoming | None) -> ScheduleRow:
        """It goes on with what is upcoming; it has ended where nothing is. Raises StaleRowError."""
        columns = {
            "state": ScheduleState.ACTIVE if upcoming else ScheduleState.ENDED,
            "reason": None,
            "num_failures": 0,
            "version": schedule.version + 1,
            **_upcoming_columns(upcoming),
        }
        return await self._database.write(lambda write: update_guarded(write, schedule, columns))

    async def delete(self, schedule: ScheduleRow) -> Deleted:
        """Remove it with its runs; their children stay. Raises StaleRowError."""

        def work(write: Write) -> Deleted:
            same = (schedules.c.id == schedule.id, schedules.c.changed == schedule.changed)
            gone = write.conn.execute(delete(schedules).where(*same).returning(schedules.c.bundle_id)).one_or_none()
            if gone is None:
                raise StaleRowError(f"{schedule.id} has changed; read it again")
            return Deleted(None if gone.bundle_id is None else drop_bundle(write, gone.bundle_id))

        return await self._database.write(work)

    async def schedule(self, schedule_id: str) -> ScheduleRow | None:
        """One schedule, or None."""
        return await self._database.read(lambda conn: fetch_schedule(conn, schedule_id))

    async def page(self, wanted: ScheduleFilter, limit: int, before_id: str | None = None) -> ListPart[ScheduleRow]:
        """At most ``limit`` schedules, newest first, those older than ``before_id``; fewer where specs are large."""
        chosen = select(schedules).order_by(schedules.c.id.desc())
        if before_id is not None:
            chosen = chosen.where(schedules.c.id < before_id)
        if wanted.state is not None:
            chosen = chosen.where(schedules.c.state == wanted.state)
        if wanted.search:
            is_named = schedules.c.name.contains(wanted.search, autoescape=True)
            chosen = chosen.where(is_named | schedules.c.id.startswith(wanted.search, autoescape=True))

        def work(conn: Connection) -> ListPart[ScheduleRow]:
            found = part_of(conn, chosen, text_bytes(schedules, conn.dialect.name), limit)
            return ListPart([schedule_of(row) for row in found.rows], found.has_more)

        return await self._database.read(work)

    async def changed(self, after: int, upto: int) -> list[ScheduleRow]:
        """Schedules that were written in these changes."""
        chosen = select(schedules).where(schedules.c.changed > after, schedules.c.changed <= upto)
        return await self._database.read(lambda conn: [schedule_of(row) for row in conn.execute(chosen)])

    async def runs(self, schedule_id: str, limit: int, before_s: float | None = None) -> list[RunRow]:
        """At most ``limit`` runs, the latest nominal time first, those before ``before_s``."""
        chosen = WITH_LIVING.where(schedule_runs.c.schedule_id == schedule_id)
        if before_s is not None:
            chosen = chosen.where(schedule_runs.c.nominal_at < before_s)
        chosen = chosen.order_by(schedule_runs.c.nominal_at.desc()).limit(limit)
        return await self._database.read(lambda conn: runs_of(conn, conn.execute(chosen).all()))

    async def latest_runs(self, schedule_ids: Sequence[str]) -> dict[str, RunRow]:
        """The run of the latest nominal time of each that has any, by the schedule's id."""
        table = schedule_runs
        latest = (
            select(table.c.schedule_id, func.max(table.c.nominal_at).label("nominal_at"))
            .where(table.c.schedule_id.in_(schedule_ids))
            .group_by(table.c.schedule_id)
            .subquery()
        )
        same = (table.c.schedule_id == latest.c.schedule_id) & (table.c.nominal_at == latest.c.nominal_at)

        def work(conn: Connection) -> dict[str, RunRow]:
            found = conn.execute(WITH_LIVING.join(latest, same)).all()
            return {row.schedule_id: run for row, run in zip(found, runs_of(conn, found), strict=True)}

        return await self._database.read(work)

    async def due(self, schedule_id: str) -> Due | None:
        """What a decision about one schedule looks at, whether or not anything is due."""

        def work(conn: Connection) -> Due | None:
            schedule = fetch_schedule(conn, schedule_id)
            return None if schedule is None else due_of(conn, schedule)

        return await self._database.read(work)

    async def fire(self, schedule: ScheduleRow, firing: Firing, key: IdempotencyKey | None = None) -> float:
        """Write a run that a person asked for, ``firing``'s only one, with the child it starts.

        Its nominal time; with a key that was used before, that of the first call. Raises StaleRowError,
        KeyReusedError.
        """

        def work(write: Write) -> float:
            if key is not None and (made := made_before(write, key)) is not None:
                return float(made)
            write_firing(write, self._ids, schedule, firing)
            (run,) = firing.runs
            if key is not None:
                spend(write, key, repr(run.nominal_at))
            return run.nominal_at

        return await self._database.write(work)


def _check_name(conn: Connection, name: str, except_id: str) -> None:
    found = conn.execute(select(schedules.c.id).where(schedules.c.name == name, schedules.c.id != except_id))
    if (other := found.scalar_one_or_none()) is not None:
        raise NameTakenError(other)


def _bundle_id(conn: Connection, schedule_id: str) -> str | None:
    return conn.execute(select(schedules.c.bundle_id).where(schedules.c.id == schedule_id)).scalar_one_or_none()


def _spec_columns(conn: Connection, spec: ScheduleSpec, target: Target) -> dict[str, object]:
    """Raises what is raised by the ``check`` of its children."""
    children_of(target).check(conn, target)
    return {
        "name": spec.name,
        "spec": spec.model_dump_json(),
        "time_zone": spec.time_zone,
        # What comes from a configuration is held there.
        "bundle_id": target.job.bundle if target.origin is None else None,
    }


def _upcoming_columns(upcoming: Upcoming | None) -> dict[str, float | None]:
    return {
        "next_nominal": None if upcoming is None else upcoming.nominal_at,
        "next_at": None if upcoming is None else upcoming.due_at,
    }
