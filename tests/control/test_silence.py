"""Workers that do not answer, or cannot be called: who is taken for lost, and when."""

from __future__ import annotations

import pytest

from tests.control.desk import Desk
from workers.control.decisions import KillWorker


@pytest.mark.parametrize(
    ("others_silent", "waited_s", "is_killed"), [(False, 11, True), (True, 11, False), (True, 31, True)]
)
def test_silence_is_judged_by_whether_others_answer(others_silent: bool, waited_s: int, is_killed: bool) -> None:
    desk = Desk()
    desk.started(2)
    silent = ("1.1", "1.2") if others_silent else ("1.2",)
    for _ in range(waited_s):
        desk.turn(after_s=1.0, silent=silent)
        if desk.of(KillWorker):
            break
    assert bool(desk.of(KillWorker)) is is_killed


@pytest.mark.parametrize(("silent", "waited_s", "is_killed"), [(("1.2",), 4, True), (("1.1", "1.2"), 9, False)])
def test_whoever_refuses_calls_is_gone_soon_unless_all_do(
    silent: tuple[str, ...], waited_s: int, is_killed: bool
) -> None:
    desk = Desk()
    desk.started(2)
    for _ in range(waited_s):
        desk.turn(after_s=1.0, silent=silent, is_refusing=True)
    assert [kill.worker_id for kill in desk.of(KillWorker) if isinstance(kill, KillWorker)] == ["1.2"] * is_killed


def test_whoever_can_be_called_again_in_time_stays() -> None:
    desk = Desk()
    desk.started(2)
    for is_refusing in [True, False] * 4:
        desk.turn(after_s=1.5, silent=("1.2",) if is_refusing else (), is_refusing=is_refusing)
        assert desk.of(KillWorker) == []


def test_a_late_turn_excuses_silence() -> None:
    desk = Desk()
    desk.started(2)
    desk.turn(after_s=40.0, silent=("1.1", "1.2"))
    assert desk.of(KillWorker) == []
