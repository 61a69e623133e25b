"""What tests of sweeps begin with: specs, and a hand that plays the reconciler's part for sweep and trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import httpx2

from service.cost import Prices
from service.promotion import contest_of, step_of
from service.records import JobRow, Transition
from service.states import JobState
from service.store.opening import Store
from service.sweep_records import SweepRow, SweepView, TrialRow
from service.sweep_specs import read_sweep_spec, sample_job
from tests.service.given import BATCH, leader, record, snapshot
from tuning.orders import Answer, Finish, Hold, Order, Prune, Start
from tuning.values import Scalar
from workers.errors import Failure, Reason
from workers.status import RunPhase

JOB: dict[str, Any] = {
    "entrypoint": "workers.recipes.digits:build",
    "samples": 3200,
    "workers": {"min": 1, "max": 2},
}
RUNG = 320
SWEEPS = "/api/v1/sweeps"


def sweep_document(**changes: Any) -> dict[str, Any]:
    """Learning rate and batch size of digits, eight trials; rungs at 320 and 960 samples."""
    return {
        "name": "digits-lr",
        "job": JOB,
        "space": {"optimizer.lr": {"log_uniform": [1e-4, 1e-1]}, "batch.global_size": {"choice": [32, 64]}},
        "metric": "eval.accuracy",
        "pruner": {"asha": {"min_samples": RUNG}},
        "trials": 8,
        "parallel": 2,
        **changes,
    }


async def created(client: httpx2.AsyncClient, **changes: Any) -> dict[str, Any]:
    """A new sweep, over HTTP."""
    answer = await client.post(SWEEPS, json=sweep_document(**changes))
    assert answer.status_code == 201, answer.text
    sweep: dict[str, Any] = answer.json()
    return sweep


def point(lr: float, batch: int = BATCH) -> dict[str, Scalar]:
    return {"optimizer.lr": lr, "batch.global_size": batch}


class Hand(Protocol):
    """A clock that the test moves."""

    now_s: float


class Swept:
    """A sweep whose search and workers the test plays; ``fence`` is the reconciler's."""

    def __init__(self, store: Store, clock: Hand, fence: int, sweep_id: str) -> None:
        self.store, self.clock, self.fence, self.id = store, clock, fence, sweep_id
        self.prices = Prices(None, None, "EUR")

    @classmethod
    async def of(cls, store: Store, clock: Hand, sweep_id: str) -> Swept:
        return cls(store, clock, await leader(store), sweep_id)

    @classmethod
    async def created(cls, store: Store, clock: Hand, fence: int, **changes: Any) -> Swept:
        spec = read_sweep_spec(sweep_document(**changes), has_prices=False)
        return cls(store, clock, fence, (await store.sweeps.create(spec, sample_job(spec))).sweep.id)

    async def view(self) -> SweepView:
        found = await self.store.reconciler.sweep_view(self.id, -1)
        assert found is not None
        return found

    async def row(self) -> SweepRow:
        return (await self.view()).sweep

    async def trial(self, number: int) -> TrialRow:
        return (await self.view()).trials[number]

    async def job(self, number: int) -> JobRow:
        job = await self.store.reconciler.job((await self.trial(number)).job_id)
        assert job is not None
        return job

    async def order(self, *orders: Order, **importance: float) -> None:
        """What the search answers, carried out, with what jobs are told by it."""
        named = {path.replace("__", "."): share for path, share in importance.items()}
        answer = Answer(orders=orders, importance=named)
        assert await self.store.reconciler.carry_out(await self.row(), answer, self.fence)

    async def look(self) -> None:
        await self.store.reconciler.observe_sweep(self.id, self.fence)

    async def begin(self, *points: dict[str, Scalar]) -> None:
        """Start trials at these points, and let their jobs run."""
        first = len((await self.view()).trials)
        orders = (Start(number=first + n, params=params, first_rung=RUNG) for n, params in enumerate(points))
        await self.order(*orders)
        for n in range(len(points)):
            job = await self.store.reconciler.admit(await self.job(first + n), 1, self.fence)
            await self.store.reconciler.transition(job, JobState.RUNNING, Transition(), self.fence)
        await self.look()

    async def report(self, number: int, **values: float) -> None:
        """Accuracies by round of 32 samples, as ``r10=0.5``; ten seconds of one worker pass for each."""
        for name, value in values.items():
            self.clock.now_s += 10
            told = record(int(name[1:]), eval__accuracy=value)
            await self.store.reconciler.fold(snapshot(await self.job(number), [told]), self.fence)
        await self.look()

    async def end(self, number: int, state: JobState = JobState.SUCCEEDED, reason: Reason = Reason.USER_ERROR) -> None:
        job, change = await self.job(number), Transition()
        if state is JobState.FAILED:
            failure = Failure(reason=reason, type="ValueError", message="lr is too much", traceback="")
            change = Transition(reason=reason, failure=failure)
        await self.store.reconciler.fold(
            replace(snapshot(job), phase=RunPhase.ENDED, workers=(), num_current=0), self.fence
        )
        await self.store.reconciler.transition(await self.job(number), state, change, self.fence)
        await self.look()

    async def complete(self, number: int, value: float) -> None:
        await self.report(number, r10=value / 2, r100=value)
        await self.end(number)

    async def hold(self, number: int) -> None:
        """It waits at the first rung, its job saved."""
        await self.order(Hold(number=number, rung=RUNG, reason=f"2 of 2 at {RUNG} samples"))
        await self.store.reconciler.transition(await self.job(number), JobState.PAUSED, Transition(), self.fence)
        await self.look()

    async def prune(self, number: int) -> None:
        await self.order(Prune(number=number, reason=f"3 of 3 at {RUNG} samples"))
        job = await self.job(number)
        if job.state is not JobState.CANCELLED:
            change = Transition(reason=job.reason)
            await self.store.reconciler.transition(job, JobState.CANCELLED, change, self.fence)
        await self.look()

    async def finish(self) -> None:
        await self.order(Finish(has_succeeded=True, reason="the trials are complete"))

    async def compare(self) -> None:
        """Begin the promotion that is due, with its first runs."""
        store = self.store.reconciler
        for _ in range(2):
            view = await store.promotion_view(self.id)
            assert view is not None
            if view.sweep.promote_to is not None:
                await store.begin_promotion(view, contest_of(view), self.fence)
            else:
                step = step_of(view, self.prices, self.clock.now_s)
                await store.carry_promotion(view, step, self.fence)

    async def conclude(self, score: Callable[[int], float], lasts_s: Callable[[int], float] = lambda _: 0.0) -> None:
        """Let the runs of the promotion end with the score of their contender, until it is decided."""
        store = self.store.reconciler
        while True:
            await self.compare()
            view = await store.promotion_view(self.id)
            assert view is not None
            going_on = [run for run in view.runs if run.is_open]
            if not going_on:
                return
            for run in going_on:
                job = await store.job(run.job_id)
                assert job is not None
                job = await store.admit(job, 1, self.fence)
                job = await store.transition(job, JobState.RUNNING, Transition(), self.fence)
                self.clock.now_s += lasts_s(run.contender)
                await store.fold(snapshot(job, [record(1, eval__accuracy=score(run.contender))]), self.fence)
                job = await store.job(run.job_id)
                assert job is not None
                await store.transition(job, JobState.SUCCEEDED, Transition(), self.fence)

    async def play(self) -> None:
        """A short history: two complete, one that failed, one that waits at a rung, one that was pruned there."""
        await self.begin(point(0.001), point(0.01, 64))
        await self.complete(0, 0.8)
        await self.complete(1, 0.95)
        await self.begin(point(0.1), point(0.05))
        await self.end(2, JobState.FAILED)
        await self.report(3, r10=0.3)
        await self.hold(3)
        await self.begin(point(0.0001))
        await self.report(4, r10=0.1)
        await self.prune(4)
