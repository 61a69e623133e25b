"""Nudges wake, and their loss is no fault."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from service.nudge import API, RECONCILER, NudgeListener, nudge, socket_path

pytestmark = pytest.mark.anyio

LONG_S = 30.0


@pytest.mark.parametrize("depth", [0, 5])
async def test_a_nudge_wakes_under_any_length_of_path(tmp_path: Path, depth: int) -> None:
    home = tmp_path.joinpath(*["a-folder-with-a-long-name"] * depth)
    listener = NudgeListener(home, API)
    listener.open()
    try:
        assert stat.S_IMODE(socket_path(home, API).stat().st_mode) == 0o600
        for _ in range(3):
            assert nudge(home, API)
            assert await listener.wait(LONG_S)
        assert not await listener.wait(0.01)
    finally:
        listener.close()
    assert not socket_path(home, API).exists()


async def test_many_nudges_count_as_one_and_never_block(tmp_path: Path) -> None:
    listener = NudgeListener(tmp_path, API)
    listener.open()
    try:
        for _ in range(5000):
            nudge(tmp_path, API)
        assert await listener.wait(LONG_S)
        await asyncio.sleep(0)
        assert not await listener.wait(0.01)
    finally:
        listener.close()


async def test_nudging_nobody_is_no_fault(tmp_path: Path) -> None:
    assert not nudge(tmp_path, RECONCILER)
    listener = NudgeListener(tmp_path, RECONCILER)
    listener.open()
    listener.close()
    assert not nudge(tmp_path, RECONCILER)


async def test_a_socket_that_a_killed_process_left_is_taken_over(tmp_path: Path) -> None:
    left = NudgeListener(tmp_path, API)
    left.open()
    taken = NudgeListener(tmp_path, API)
    taken.open()
    try:
        assert nudge(tmp_path, API)
        assert await taken.wait(LONG_S)
    finally:
        taken.close()
        left.close()


async def test_waiting_can_be_cancelled_together_with_a_nudge(tmp_path: Path) -> None:
    listener = NudgeListener(tmp_path, API)
    task = asyncio.create_task(listener.wait(LONG_S))
    await asyncio.sleep(0)
    listener.wake()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
