from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from service import cluster
from service.head_calls import HeadCalls

pytestmark = pytest.mark.anyio

BOUND_S = 1.0
LONG_S = 60.0


async def test_a_call_may_wait_for_its_turn_longer_than_it_may_take() -> None:
    calls, released = HeadCalls(), threading.Event()
    first = asyncio.create_task(calls.run(lambda: released.wait(LONG_S), LONG_S))
    second = asyncio.create_task(calls.run(lambda: "answer", BOUND_S))
    waiting = (await asyncio.wait({second}, timeout=1.2 * BOUND_S))[1]
    assert waiting == {second}
    released.set()
    assert await first
    assert await second == "answer"
    assert calls.is_idle
    calls.close()


async def test_behind_a_call_that_hangs_all_fail_at_once_until_it_has_ended() -> None:
    calls, released = HeadCalls(), threading.Event()
    with pytest.raises(TimeoutError):
        await calls.run(lambda: released.wait(LONG_S), 0.05)
    assert not calls.is_idle
    behind = [asyncio.create_task(calls.run(int, LONG_S)) for _ in range(2)]
    done, _ = await asyncio.wait(behind, timeout=LONG_S / 2)
    assert done == set(behind)
    assert all(isinstance(call.exception(), TimeoutError) for call in behind)
    released.set()
    while not calls.is_idle:
        await asyncio.sleep(0)
    assert await calls.run(lambda: "answer", LONG_S) == "answer"
    calls.close()


async def test_an_error_of_the_call_itself_holds_nobody_up() -> None:
    def fails() -> None:
        raise TimeoutError("of the head")

    calls = HeadCalls()
    with pytest.raises(TimeoutError, match="of the head"):
        await calls.run(fails, LONG_S)
    assert await calls.run(lambda: "answer", LONG_S) == "answer"
    calls.close()


async def test_a_head_that_hangs_while_it_is_told_of_the_look_at_storage_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released, answer = threading.Event(), asyncio.get_running_loop().create_future()
    answer.set_result(True)

    def tell(path: str) -> asyncio.Future[bool]:
        assert released.wait(LONG_S), "the loop stood still"
        return answer

    # As Ray does where its head has not been told of a function yet.
    look = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=tell))
    monkeypatch.setattr(cluster, "_is_file_task", lambda: look)
    asyncio.get_running_loop().call_later(0.05, released.set)
    assert await cluster.Cluster("127.0.0.1:1", "namespace").who_sees("file", ["a" * 56]) == {"a" * 56}
