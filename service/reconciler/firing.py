"""The leader's clock of schedules: looks at what is due, decides, writes. Works also while Ray is away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import structlog

from service.firing import decide
from service.schedule_records import Due
from service.store.port import DatabaseAwayError, FencedOutError, ReconcilerStore, StaleRowError

log = structlog.get_logger("concertina.reconciler")


class Schedules:
    """Fires while it leads; ``clock`` gives Unix seconds, ``wake`` tells that there are new jobs.

    Looks every ``poll_s``, and at the moment when something is due.
    """

    def __init__(
        self,
        store: ReconcilerStore,
        fence: int,
        poll_s: float,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._store, self._fence, self._poll_s = store, fence, poll_s
        self._clock, self._wake = clock, wake

    async def run(self) -> None:
        """Turn after turn until cancelled, or until another leads."""
        while True:
            pause_s = self._poll_s
            try:
                pause_s = await self.turn()
            except FencedOutError:
                return  # the heartbeat finds out as well, and ends the process
            except DatabaseAwayError as error:
                log.warning("schedules wait for the database", why=str(error))
            except Exception:  # a fault costs one look; whoever ran this would not see it before the process ends
                log.exception("looking at schedules failed")
            await asyncio.sleep(pause_s)

    async def turn(self) -> float:
        """One look; the seconds until the next. Raises FencedOutError, DatabaseAwayError."""
        seen = await self._store.due_schedules(self._clock())
        has_fired = [await self._fire(due) for due in seen.due]
        if any(has_fired):
            self._wake()
            return 0.0
        until_s = self._poll_s if seen.next_at is None else seen.next_at - self._clock()
        return max(0.0, min(self._poll_s, until_s))

    async def _fire(self, due: Due) -> bool:
        """Whether anything was written."""
        row = due.schedule
        try:
            firing = decide(due, self._clock())
            if not firing.changes(row):
                return False
            await self._store.fire(row, firing, self._fence)
        except StaleRowError as error:
            log.info("decided anew", schedule=row.id, why=str(error))
            return True
        except (FencedOutError, DatabaseAwayError):
            raise
        except Exception:  # one schedule at fault must not hold up the others
            log.exception("schedule failed", schedule=row.id)
            return False
        outcomes = Counter(run.outcome.value for run in firing.runs)
        log.info("schedule fired", schedule=row.id, name=row.name, state=firing.state.value, **outcomes)
        return True
