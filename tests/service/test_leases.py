"""The leader's lease where clocks differ or jump: whoever sees it stand still takes it, nobody else's is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from service.store.opening import Store, open_store
from service.store.port import FencedOutError
from tests.service.given import Clock

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0
LEASE_S = 15.0
LOOK_S = LEASE_S / 5


@pytest.fixture
def steady() -> Clock:
    """What standbys measure by, whatever becomes of the time of day."""
    return Clock()


@pytest.fixture
async def standby(database_url: str, clock: Clock, steady: Clock) -> AsyncIterator[Store]:
    opened = open_store(database_url, clock, steady)
    yield opened
    await opened.close()


@pytest.fixture
async def another(database_url: str, clock: Clock, steady: Clock) -> AsyncIterator[Store]:
    opened = open_store(database_url, clock, steady)
    yield opened
    await opened.close()


async def test_a_dead_leaders_lease_is_taken_once_it_stood_still_for_its_length_however_far_ahead_its_clock_was(
    store: Store, standby: Store, another: Store, clock: Clock, steady: Clock
) -> None:
    dead = await store.reconciler.take_lease("b", LEASE_S)
    assert dead is not None
    assert await standby.reconciler.take_lease("a", LEASE_S) is None
    assert await another.reconciler.take_lease("c", LEASE_S) is None
    clock.advance(1.0)
    await store.reconciler.renew_lease(dead, LEASE_S)
    clock.advance(-DAY_S)
    for _ in range(5):
        assert await standby.reconciler.take_lease("a", LEASE_S) is None
        assert await another.reconciler.take_lease("c", LEASE_S) is None
        steady.advance(LOOK_S)
    fences = await asyncio.gather(
        standby.reconciler.take_lease("a", LEASE_S), another.reconciler.take_lease("c", LEASE_S)
    )
    assert sorted(fences, key=str) == [dead + 1, None], "both have waited, one leads"
    with pytest.raises(FencedOutError):
        await store.reconciler.renew_lease(dead, LEASE_S)


@pytest.mark.parametrize("jump_s", [-DAY_S, 0.0])
async def test_a_leader_that_renews_is_never_displaced_by_who_has_stood_by_for_long(
    store: Store, standby: Store, clock: Clock, steady: Clock, jump_s: float
) -> None:
    fence = await store.reconciler.take_lease("b", LEASE_S)
    assert fence is not None
    clock.advance(jump_s)
    for number in range(20):
        # Its own patience may be less than the time between two renewals.
        assert await standby.reconciler.take_lease("a", LOOK_S) is None
        clock.advance(LOOK_S)
        steady.advance(LOOK_S)
        if number % 3 == 2:
            await store.reconciler.renew_lease(fence, LEASE_S)
    # Whoever did not look for long has not seen it stand still.
    steady.advance(DAY_S)
    clock.advance(1.0)
    await store.reconciler.renew_lease(fence, LEASE_S)
    assert await standby.reconciler.take_lease("a", LEASE_S) is None
