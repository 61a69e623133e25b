"""Sweeps from which others begin in turn: what several nights ago was tried is not tried again while there is more."""

from __future__ import annotations

from typing import Any

import pytest

from service.store.forebears import MAX_FOREBEARS
from service.store.opening import Store
from tests.service.given import Clock, leader
from tests.service.scheduled import SWEEP, at, firing_at_seven
from tests.service.swept import Swept, point
from tuning.limits import Used
from tuning.orders import Beginning, Standing, Start
from tuning.search import begun
from tuning.values import Scalar

pytestmark = pytest.mark.anyio

NOTHING = Used(time_s=0.0, cost=None)
RATES = [0.001, 0.002, 0.003, 0.004]
FEW: dict[str, Any] = {"space": {"optimizer.lr": {"choice": RATES}}, "trials": 1, "parallel": 1}


async def beginning(swept: Swept) -> Beginning:
    return await swept.store.reconciler.beginning(await swept.row())


async def searched(swept: Swept) -> dict[str, Scalar]:
    """The first point that its search tries, which is played to its end."""
    answer = begun(await beginning(swept)).answer([], Standing(num_trials=1, samples_per_epoch=None, used=NOTHING))
    (start,) = answer.orders
    assert isinstance(start, Start)
    await swept.begin(dict(start.params))
    await swept.complete(0, 0.5)
    await swept.finish()
    return dict(start.params)


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
async def test_nights_of_one_trial_each_try_all_there_is_and_then_the_first_again(
    store: Store, clock: Clock, sampler: str
) -> None:
    firing = await firing_at_seven(store, clock)
    schedule = await firing.create(target={"sweep": {**SWEEP, **FEW, "sampler": sampler}})
    tried = []
    for hour in range(8, 8 + 2 * len(RATES)):
        await firing.at(at(hour))
        child = firing.swept((await firing.children(schedule))[-1])
        tried.append((await searched(child))["optimizer.lr"])
    assert sorted(tried[: len(RATES)], key=float) == RATES
    assert tried[len(RATES) :] == tried[: len(RATES)]


async def chain(store: Store, clock: Clock, length: int, **changes: Any) -> list[Swept]:
    """Sweeps of which each begins from the one before, and tries a point of its own."""
    fence = await leader(store)
    links: list[Swept] = []
    for number in range(length):
        links.append(await Swept.created(store, clock, fence, warm_start=[s.id for s in links[-1:]], **changes))
        await links[-1].begin(point(0.001 * (number + 1)))
        await links[-1].complete(0, 0.5)
    return links


async def test_a_chain_is_followed_so_far_and_the_nearest_comes_first(store: Store, clock: Clock) -> None:
    links = await chain(store, clock, MAX_FOREBEARS + 3)
    found = await beginning(links[-1])
    assert list(found.earlier) == [links[-2].id]
    assert list(found.forebears) == [swept.id for swept in links[-3::-1][:MAX_FOREBEARS]]
    assert found.forebears[links[-3].id] == [(await links[-3].trial(0)).params]


async def test_a_sweep_that_two_began_from_counts_once_and_none_that_is_learned_from(
    store: Store, clock: Clock
) -> None:
    first, second, third = await chain(store, clock, 3)
    last = await Swept.created(store, clock, third.fence, warm_start=[third.id, second.id])
    assert list((await beginning(last)).forebears) == [first.id]


async def test_so_many_points_are_handed_on_at_most_the_last_begun_and_none_that_was_ended_unseen(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = await chain(store, clock, 4)
    for swept in links:
        await swept.begin(point(0.05), point(0.06))
        await swept.prune(1)
    monkeypatch.setattr("service.store.forebears.MAX_POINTS", 3)
    found = (await beginning(links[-1])).forebears
    assert list(found.values()) == [[point(0.002), point(0.06)], [point(0.06)]]


async def test_a_population_tried_no_points_and_its_own_beginnings_count(store: Store, clock: Clock) -> None:
    first, second = await chain(store, clock, 2)
    many = {"population": "pbt", "pruner": "none", "trials": 4, "parallel": 4}
    bred = await Swept.created(store, clock, first.fence, warm_start=[second.id], **many)
    after = await Swept.created(store, clock, first.fence, warm_start=[bred.id])
    await bred.begin(point(0.05))
    last = await Swept.created(store, clock, first.fence, warm_start=[after.id])
    found = (await beginning(last)).forebears
    assert {of: len(points) for of, points in found.items()} == {bred.id: 0, second.id: 1, first.id: 1}
