"""Schedules as the reconciler sees them: which are due, and writing what was decided."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, func, select

from service.firing import may_start
from service.ids import IdSource
from service.schedule_records import DueSchedules, Firing, Outcome, ScheduleRow, ScheduleState
from service.store.children import HAS_LIVING_CHILD
from service.store.database import Database
from service.store.schedule_rows import due_of, fetch_schedule, write_firing
from service.store.schema import schedule_runs, schedules

MAX_DUE = 100
"""Of one look; the others at the next."""


class FiringStore:
    """See ``ReconcilerStore`` for the promises."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ids = IdSource()

    async def due_schedules(self, now_s: float) -> DueSchedules:
        """What is to be decided, the longest due first."""

        return await self._database.read(lambda conn: look_at_due(conn, now_s))

    async def fire(self, schedule: ScheduleRow, firing: Firing, fence: int) -> None:
        """Write what was decided. Raises StaleRowError, FencedOutError."""
        await self._database.write(lambda write: write_firing(write, self._ids, schedule, firing), fence)


_runs = schedule_runs
_ENDED = select(_runs.c.schedule_id).where(_runs.c.is_open, _runs.c.outcome == Outcome.STARTED, ~HAS_LIVING_CHILD)
_LIVING = select(_runs.c.schedule_id).where(_runs.c.is_open, _runs.c.outcome == Outcome.STARTED, HAS_LIVING_CHILD)
_WAITING = (
    select(schedules.c.id, schedules.c.state, _runs.c.nominal_at)
    .join(_runs, _runs.c.schedule_id == schedules.c.id)
    .where(_runs.c.is_open, _runs.c.outcome == Outcome.BUFFERED)
)
_DUE = select(schedules.c.id).where(schedules.c.next_at <= bindparam("now_s")).order_by(schedules.c.next_at)
_NEXT = select(func.min(schedules.c.next_at)).where(schedules.c.next_at > bindparam("now_s"))


def look_at_due(conn: Connection, now_s: float) -> DueSchedules:
    """What is to be decided at ``now_s``."""
    found = dict.fromkeys(conn.execute(_DUE.limit(MAX_DUE), {"now_s": now_s}).scalars())
    found |= dict.fromkeys(_with_news(conn)[:MAX_DUE])
    rows = [row for schedule_id in found if (row := fetch_schedule(conn, schedule_id)) is not None]
    next_at = conn.execute(_NEXT, {"now_s": now_s}).scalar_one()
    return DueSchedules(due=tuple(due_of(conn, row) for row in rows), next_at=next_at)


def _with_news(conn: Connection) -> list[str]:
    """Schedules of which a child has ended, or a run need not wait any more."""
    ended = conn.execute(_ENDED).scalars().all()
    waiting = [row.id for row in conn.execute(_WAITING) if may_start(ScheduleState(row.state), row.nominal_at)]
    busy = set(conn.execute(_LIVING).scalars()) if waiting else set()
    return [*ended, *(schedule_id for schedule_id in waiting if schedule_id not in busy)]
