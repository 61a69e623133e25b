"""Following promotions: look at what their runs have come to, decide, write it down. The rows are all the state."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from service.promotion import contest_of, step_of
from service.promotion_records import PromotionState, PromotionView
from service.reconciler.ages import Ages
from service.reconciler.pursuit import Office
from service.store.port import DatabaseAwayError, FencedOutError, StaleRowError, TransitionError
from service.sweep_records import ENDED_SWEEPS

log = structlog.get_logger("concertina.reconciler")


class Promoting:
    """All promotions of one leader. Not for several tasks at once."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._ages = Ages[tuple[str, int]](office.monotonic_s)
        self.is_brisk = False

    async def tick(self, found: Sequence[str]) -> None:
        """One look at each of these sweeps. Raises FencedOutError, DatabaseAwayError."""
        self.is_brisk = bool(found)
        self._ages.forget_unless(lambda promotion: promotion[0] in found)
        for sweep_id in found:
            try:
                await self._follow(sweep_id)
            except (StaleRowError, TransitionError) as error:
                log.info("decided anew", sweep=sweep_id, why=str(error))
            except (FencedOutError, DatabaseAwayError):
                raise
            except Exception:  # one promotion at fault must not hold up the jobs and the others
                log.exception("promotion failed", sweep=sweep_id)

    async def _follow(self, sweep_id: str) -> None:
        store, fence = self._office.store, self._office.fence
        view = await store.promotion_view(sweep_id)
        if view is None:
            return
        if _is_due(view):
            contest = await asyncio.to_thread(contest_of, view)
            log.info("promotion begins", sweep=sweep_id, to=view.sweep.promote_to, refusal=contest.refusal)
            await store.begin_promotion(view, contest, fence)
            return
        if view.promotion is None:
            return
        begun_at = view.promotion.created_at
        age_s = self._ages.age_s((sweep_id, view.promotion.number), begun_at, self._office.clock())
        step = step_of(view, self._office.prices, begun_at + age_s)
        if step.start or step.cancel or step.end or any(run.is_news for run in view.runs):
            await store.carry_promotion(view, step, fence)
            if step.end is not None:
                log.info("promotion ended", sweep=sweep_id, state=step.end.state.value, why=step.end.reason)


def _is_due(view: PromotionView) -> bool:
    """Of an earlier one every run has ended."""
    is_free = view.promotion is None or view.promotion.state is not PromotionState.RUNNING
    has_open = any(run.is_open or run.is_news for run in view.runs)
    return is_free and not has_open and view.sweep.promote_to is not None and view.sweep.state in ENDED_SWEEPS
