"""Following the sweeps: note what trials have come to, ask each sweep's controller what to do, write it down."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import structlog

from service.ports import (
    ClusterLostError,
    ControllerFaultError,
    ControllerLostError,
    ControllerSilentError,
)
from service.reconciler.ages import Ages
from service.reconciler.pursuit import Office
from service.reconciler.reckoning import Reckoning
from service.reconciler.starting import MAX_STARTS, Backoff
from service.store.port import FencedOutError, StaleRowError, TransitionError
from service.sweep_limits import used_by
from service.sweep_records import SweepRow, SweepState, SweepView
from tuning.orders import Answer, Finish, Question, Standing
from workers.control.names import sweep_name

log = structlog.get_logger("concertina.reconciler")

ANSWER_S = 60.0
"""Asks of a Gaussian process over many trials take seconds."""

LOOK_S = 1.0
"""So often limits of time and cost, and who has a place, are looked at while nothing else happens."""


class Searching:
    """All sweeps of one leader. Not for several tasks at once."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._follows: dict[str, _Follow] = {}
        self._steps: dict[str, asyncio.Task[None]] = {}
        self._passed_over: set[str] = set()
        self.is_brisk = False

    async def tick(self, sweeps: Sequence[SweepRow], stuck: Set[str]) -> None:
        """One look at each of these, which are all that live; those that still think about the last one are left alone.

        ``stuck`` are jobs that wait and would not fit into the empty cluster: they hold nobody up, nor do trials leave
        their places to them. Raises ClusterLostError, FencedOutError.
        """
        self._reraise()
        self.is_brisk = bool(sweeps or self._follows)
        for sweep_id in self._follows.keys() - {sweep.id for sweep in sweeps} - self._steps.keys():
            if await self._follows[sweep_id].has_ended():
                del self._follows[sweep_id]
        for sweep in sweeps:
            if sweep.id in self._steps:
                self._passed_over.add(sweep.id)
                continue
            follow = self._follows.setdefault(sweep.id, _Follow(self._office, sweep.id))
            self._steps[sweep.id] = asyncio.create_task(self._step(follow, stuck))

    async def settle(self, timeout_s: float) -> None:
        """Wait for the steps that are under way."""
        if self._steps:
            await asyncio.wait(self._steps.values(), timeout=timeout_s)

    async def _step(self, follow: _Follow, stuck: Set[str]) -> None:
        try:
            await _guarded(follow, stuck)
        finally:
            if follow.sweep_id in self._passed_over:  # what that look came for may be news to it
                self._passed_over.remove(follow.sweep_id)
                self._office.news.tell()

    def _reraise(self) -> None:
        for sweep_id, task in [item for item in self._steps.items() if item[1].done()]:
            del self._steps[sweep_id]
            error = task.exception()
            if isinstance(error, ClusterLostError | FencedOutError):
                raise error
            if error is not None:
                log.error("step failed", sweep=sweep_id, exc_info=error)


async def _guarded(follow: _Follow, stuck: Set[str]) -> None:
    try:
        await follow.step(stuck)
    except (StaleRowError, TransitionError) as error:
        follow.begin_anew()
        log.info("decided anew", sweep=follow.sweep_id, why=str(error))
    except Exception:
        follow.begin_anew()  # what was decided may not have been written
        raise


@dataclass(frozen=True, slots=True)
class _Seen:
    """The change up to which rows were asked about, and that up to which they were looked at."""

    asked: int = -1
    looked: int = -1
    asked_s: float = -math.inf


class _Follow:
    """One sweep, while it is live."""

    def __init__(self, office: Office, sweep_id: str) -> None:
        self._office, self.sweep_id = office, sweep_id
        self._seen = _Seen()
        self._term = 0
        self._backoff = Backoff()
        self._is_new = True
        self._reckoning = Reckoning()
        self._ages = Ages[float](office.monotonic_s)

    def begin_anew(self) -> None:
        """What the controller counted on did not come true: it gets all rows at the next step."""
        self._is_new, self._seen, self._reckoning = True, _Seen(), Reckoning()

    async def step(self, stuck: Set[str]) -> None:
        """Bring rows and jobs together, then ask, where there is news, and carry out the answer; see ``Searching``.

        Raises StaleRowError, TransitionError, ClusterLostError, FencedOutError.
        """
        store, now_s = self._office.store, self._office.monotonic_s()
        look = await store.observe_sweep(self.sweep_id, self._office.fence)
        sweep = None if look is None else look.sweep
        if look is not None and look.has_told:
            self._office.news.tell()
        if sweep is None or sweep.state is not SweepState.RUNNING:
            await self.has_ended()
            return
        must_look = _tells_by_time(sweep) and now_s - self._seen.asked_s >= LOOK_S
        if not self._backoff.is_due(now_s) or (sweep.changed == self._seen.looked and not must_look):
            return
        if sweep.term == 0:
            await store.new_sweep_term(sweep, self._office.fence)
        view = await store.sweep_view(self.sweep_id, -1 if self._is_new else self._seen.asked, stuck)
        if view is None or view.sweep.state is not SweepState.RUNNING:
            return
        question, changed = await self._question(view), view.sweep.changed
        if not must_look and not self._reckoning.is_news(question):
            self._seen = replace(self._seen, looked=changed)
            return
        answer = await self._ask(view.sweep, question)
        if answer is None:
            return
        self._backoff, self._is_new = Backoff(), False
        self._seen = _Seen(asked=changed, looked=changed, asked_s=now_s)
        self._reckoning.asked(question, answer)
        if answer.orders or dict(answer.importance) != dict(view.sweep.importance):
            await self._carry_out(view.sweep, answer)
            self._office.news.tell()

    async def has_ended(self) -> bool:
        """Let the controller go, where there is one; False while trials still need it."""
        if self._term:
            if not await self._office.cluster.end_search(self.sweep_id, self._term):
                return False
            await self._office.cluster.end_pools(self.sweep_id)
        self._term = 0
        self.begin_anew()
        return True

    async def _carry_out(self, sweep: SweepRow, answer: Answer) -> None:
        told = [type(order).__name__.lower() for order in answer.orders]
        log.info("sweep goes on", sweep=sweep.id, orders=told[:20], count=len(told))
        if not await self._office.store.carry_out(sweep, answer, self._office.fence):
            self.begin_anew()

    async def _ask(self, sweep: SweepRow, question: Question) -> Answer | None:
        """None where there is no answer yet: it is tried again, later each time."""
        self._term = sweep.term
        name = sweep_name(sweep.id, sweep.term)
        try:
            answer = await self._office.cluster.ask_search(sweep.id, sweep.term, question, ANSWER_S)
        except ControllerLostError as error:
            await self._fail(sweep, str(error))
        except ControllerSilentError as error:
            await self._office.cluster.kill([name])
            await self._fail(sweep, str(error))
            await self._office.store.new_sweep_term(sweep, self._office.fence)
        except ControllerFaultError as error:
            await self._fail(sweep, str(error))
        else:
            if answer is None:
                self.begin_anew()
            return answer
        return None

    async def _fail(self, sweep: SweepRow, why: str) -> None:
        """Try again with all rows; a sweep whose controller fails again and again ends."""
        self.begin_anew()
        self._backoff = self._backoff.failed(self._office.monotonic_s())
        log.warning("a sweep's controller failed", sweep=sweep.id, why=why, count=self._backoff.num_failed)
        if self._backoff.num_failed >= MAX_STARTS:
            end = Finish(has_succeeded=False, reason=f"its controller failed {self._backoff.num_failed} times: {why}")
            await self._office.store.carry_out(
                sweep, Answer(orders=(end,), importance=sweep.importance), self._office.fence
            )

    async def _question(self, view: SweepView) -> Question:
        beginning = await self._office.store.beginning(view.sweep) if self._is_new else None
        ran_s = view.sweep.ran_s + self._stretch_s(view.sweep.runs_since)
        in_order = sorted(view.trials, key=lambda trial: (trial.finished_at or math.inf, trial.number))
        return Question(
            beginning=beginning,
            trials=[trial.for_search() for trial in in_order],
            standing=Standing(
                num_trials=view.sweep.num_trials,
                samples_per_epoch=view.samples_per_epoch,
                used=used_by(view.sweep.spec, ran_s, view.spent, view.promoted, self._office.prices),
                places=view.places,
            ),
        )

    def _stretch_s(self, since: float | None) -> float:
        """How long it has run without a pause."""
        return 0.0 if since is None else self._ages.age_s(since, since, self._office.clock())


def _tells_by_time(sweep: SweepRow) -> bool:
    """Whether something may be to be decided although no row of a trial says anything new."""
    document = sweep.document
    limits = document["limits"]
    return document["population"] is not None or limits["time_s"] is not None or limits["cost"] is not None
