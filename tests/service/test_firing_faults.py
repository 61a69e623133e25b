"""Leaders of schedules die and succeed each other at random moments: each nominal time is decided once."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import takewhile
from typing import Any, cast

import pytest

from service.reconciler.firing import Schedules
from service.records import JobFilter
from service.store.opening import Store, open_store
from service.store.port import FencedOutError, ReconcilerStore
from tests.service.given import Clock, leader
from tests.service.scheduled import MINUTE_S, Firing, firing_at_seven

pytestmark = pytest.mark.anyio

NUM_LEADERS = 60


class KilledError(BaseException):
    """The process is gone: nothing catches that."""


class Mortal:
    """A store of a leader who dies once: before or after the effect of a call, drawn by dice."""

    def __init__(self, store: ReconcilerStore, dice: random.Random) -> None:
        self._store = store
        self._left, self._is_before = dice.randint(1, 6), dice.random() < 0.5

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*arguments: Any) -> Any:
            self._left -= 1
            if self._left == 0 and self._is_before:
                raise KilledError
            answer = await method(*arguments)
            if self._left == 0:
                raise KilledError
            return answer

        return call


@pytest.mark.parametrize("seed", range(2))
async def test_kills_and_takeovers_around_fire_times_neither_miss_nor_double_any(
    store: Store, database_url: str, clock: Clock, seed: int
) -> None:
    dice = random.Random(seed)
    firing = await firing_at_seven(store, clock)
    made = [
        await firing.create(name="often", cron="* * * * *", overlap="allow"),
        await firing.create(name="jittered", cron="*/2 * * * *", overlap="allow", jitter_s=60),
    ]
    begin_s, num_killed, fence = clock.now_s, 0, firing.fence
    other = open_store(database_url, clock)
    for number in range(NUM_LEADERS):
        replica = dice.choice((store, other)).reconciler
        await replica.release_lease(fence)
        stale, fence = fence, await leader(store, f"leader-{number}")
        mortal = cast(ReconcilerStore, Mortal(replica, dice))
        try:
            for _ in range(6):
                clock.advance(dice.choice((0.0, 1.0, 20.0, 59.0)))
                # Whoever was stopped while it led wakes, and tries what it was at.
                with suppress(FencedOutError):
                    await Schedules(replica, stale, 0.5, clock, lambda: None).turn()
                await Schedules(mortal, fence, 0.5, clock, lambda: None).turn()
        except KilledError:
            num_killed += 1
    await other.close()
    await Firing(store, clock, fence).catch_up()
    assert num_killed > NUM_LEADERS / 2
    jobs = {job.id for job in (await store.jobs.page(JobFilter(), 10_000)).rows}
    for schedule in made:
        runs = await store.schedules.runs(schedule.id, 10_000)
        times = schedule.spec.nominal_times(begin_s)
        expected = list(takewhile(lambda time_s: time_s <= clock.now_s - MINUTE_S, times))
        assert [run.nominal_at for run in reversed(runs)][: len(expected)] == expected
        assert {run.outcome for run in runs} == {"STARTED"}
        children = {run.child_id for run in runs}
        assert len(children) == len(runs) > 10
        assert children <= jobs
        jobs -= children
    assert jobs == set()
