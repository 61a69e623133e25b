from __future__ import annotations

import asyncio
import pickle

import pytest

from workers.control.rendezvous import MAX_GROUPS, Rendezvous, RendezvousError, SupersededError


def test_a_value_that_is_there_is_given_at_once() -> None:
    async def scene() -> bytes:
        store = Rendezvous()
        store.set("1/1", "a", b"x")
        return await store.get("1/1", "a", 0.0)

    assert asyncio.run(scene()) == b"x"


def test_a_waiter_gets_the_value_when_it_is_set() -> None:
    async def scene() -> list[bytes]:
        store = Rendezvous()
        waiters = [asyncio.create_task(store.get("1/1", "a", 10)) for _ in range(3)]
        await asyncio.sleep(0)
        store.set("1/1", "a", b"x")
        return await asyncio.gather(*waiters)

    assert asyncio.run(scene()) == [b"x"] * 3


def test_a_wait_has_a_bound_and_names_what_it_waited_for() -> None:
    with pytest.raises(RendezvousError, match=r"1/1: nobody set 'a' within 0.01 s"):
        asyncio.run(Rendezvous().get("1/1", "a", 0.01))


@pytest.mark.parametrize("num_turns", range(4))
def test_a_cancellation_beside_the_arrival_of_the_value_is_not_swallowed(num_turns: int) -> None:
    async def scene() -> None:
        store = Rendezvous()
        waiter = asyncio.create_task(store.get("1/1", "a", 10))
        await asyncio.sleep(0)
        store.set("1/1", "a", b"x")
        for _ in range(num_turns):
            await asyncio.sleep(0)
        was_in_time = waiter.cancel()
        await asyncio.wait([waiter])
        assert waiter.cancelled() is was_in_time

    asyncio.run(scene())


def test_superseding_fails_waiters_at_once_and_latecomers_too() -> None:
    async def scene() -> None:
        store = Rendezvous()
        waiter = asyncio.create_task(store.get("1/3", "a", 1000))
        await asyncio.sleep(0)
        store.supersede(3)
        with pytest.raises(SupersededError):
            await waiter
        for late in ("1/3", "1/2", "2/3"):
            with pytest.raises(SupersededError):
                store.set(late, "a", b"x")
            assert not store.check(late, [])
        store.set("1/4", "a", b"x")

    asyncio.run(scene())


def test_add_counts_and_is_readable_as_a_value() -> None:
    async def scene() -> bytes:
        store = Rendezvous()
        assert [store.add("1/1", "n", 2), store.add("1/1", "n", 3)] == [2, 5]
        return await store.get("1/1", "n", 0.0)

    assert asyncio.run(scene()) == b"5"


def test_check_tells_the_truth() -> None:
    store = Rendezvous()
    store.set("1/1", "a", b"")
    assert store.check("1/1", ["a"])
    assert not store.check("1/1", ["a", "b"])
    assert not store.check("1/2", ["a"])


def test_generations_do_not_see_each_other() -> None:
    store = Rendezvous()
    store.set("1/1", "a", b"old")
    assert not store.check("1/2", ["a"])


def test_only_the_newest_generations_are_kept() -> None:
    store = Rendezvous()
    last = 3 * MAX_GROUPS
    for generation in range(1, last + 1):
        store.set(f"1/{generation}", "a", b"x")
    kept = [generation for generation in range(1, last + 1) if store.check(f"1/{generation}", ["a"])]
    assert kept == list(range(last - MAX_GROUPS + 1, last + 1))
    with pytest.raises(SupersededError):
        store.set("1/1", "a", b"x")


def test_errors_cross_process_borders() -> None:
    error = pickle.loads(pickle.dumps(SupersededError("rendezvous 1/1 was given up")))
    assert isinstance(error, RendezvousError)
    assert error.message == "rendezvous 1/1 was given up"
