"""Schedules as the reconciler sees them: which are due, and writing what was decided."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from service.ids import IdSource
from service.schedule_records import DueSchedules, Firing, Outcome, ScheduleRow, ScheduleState
from service.store.children import CHILDREN
from service.store.database import Database
from service.store.schedule_rows import due_of, fetch_schedule, write_firing
from service.store.schema import schedule_runs as runs
from service.store.schema import schedules

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


def look_at_due(conn: Connection, now_s: float) -> DueSchedules:
    """What is to be decided at ``now_s``."""
    is_due = select(schedules.c.id).where(schedules.c.next_at <= now_s).order_by(schedules.c.next_at)
    found = dict.fromkeys(conn.execute(is_due.limit(MAX_DUE)).scalars())
    found |= dict.fromkeys(_with_news(conn)[:MAX_DUE])
    rows = [row for schedule_id in found if (row := fetch_schedule(conn, schedule_id)) is not None]
    next_at = conn.execute(select(func.min(schedules.c.next_at)).where(schedules.c.next_at > now_s))
    return DueSchedules(due=tuple(due_of(conn, row) for row in rows), next_at=next_at.scalar_one())


def _with_news(conn: Connection) -> list[str]:
    """Schedules of which a child has ended, or a run need not wait any more."""
    is_open = select(runs.c.schedule_id, runs.c.outcome, runs.c.kind, runs.c.child_id, schedules.c.state)
    found = conn.execute(is_open.join(schedules, schedules.c.id == runs.c.schedule_id).where(runs.c.is_open)).all()
    alive: set[str] = set()
    news: dict[str, None] = {}
    for kind, of_kind in CHILDREN.items():
        started = [row for row in found if row.kind == kind and row.outcome == Outcome.STARTED]
        states = of_kind.states(conn, [row.child_id for row in started])
        for row in started:
            if row.child_id in states and not of_kind.ended(states[row.child_id]):
                alive.add(row.schedule_id)
            else:
                news[row.schedule_id] = None
    for row in found:
        if row.outcome == Outcome.BUFFERED and row.state != ScheduleState.PAUSED and row.schedule_id not in alive:
            news[row.schedule_id] = None
    return list(news)
