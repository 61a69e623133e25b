"""What counts as silence of a child, and that the real children are not silent while they wait."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.settings import Settings, environment
from service.supervise.ports import listen
from service.supervise.serve import child_environment
from service.supervise.vigil import FIRST_SIGN_LIMIT_S, Vigil
from tests.waiting import LIMIT_S, wait_for

PATIENCE_S = 5.0


@pytest.fixture
def vigil() -> Iterator[Vigil]:
    made = Vigil(PATIENCE_S, 0.0)
    yield made
    made.close()


def beat(vigil: Vigil) -> None:
    os.write(vigil.writing, b".")


def hears(vigil: Vigil, now_s: float) -> bool:
    vigil.is_silent_too_long(now_s)
    return vigil.silent_s == 0.0


def test_silence_counts_from_the_last_sign_of_life(vigil: Vigil) -> None:
    beat(vigil)
    assert [vigil.is_silent_too_long(t) for t in range(5)] == [False] * 5
    beat(vigil)
    assert [vigil.is_silent_too_long(t) for t in range(5, 11)] == [False] * 5 + [True]
    vigil.hand_over()


def test_before_its_first_sign_a_process_may_take_long(vigil: Vigil) -> None:
    looks = [vigil.is_silent_too_long(t) for t in range(int(FIRST_SIGN_LIMIT_S) + 1)]
    assert looks == [False] * int(FIRST_SIGN_LIMIT_S) + [True]
    vigil.hand_over()


def test_who_was_stopped_together_with_its_listener_is_not_taken_for_hung(vigil: Vigil) -> None:
    beat(vigil)
    assert not vigil.is_silent_too_long(1.0)
    assert not vigil.is_silent_too_long(100_000.0)
    beat(vigil)
    assert not vigil.is_silent_too_long(100_000.2)
    assert vigil.silent_s == 0.0
    vigil.hand_over()


def test_a_process_that_has_ended_is_silent(vigil: Vigil) -> None:
    vigil.hand_over()
    assert [vigil.is_silent_too_long(t) for t in (0.0, 1.0)] == [False, False]
    assert vigil.silent_s == 1.0


@pytest.mark.parametrize("module", ["service.reconciler", "service.supervise.api_process"])
def test_the_real_children_give_signs_of_life_where_there_is_no_ray(
    vigil: Vigil, settings: Settings, module: str, tmp_path: Path
) -> None:
    lifeline, writing = os.pipe()
    seconds = itertools.count(1.0)
    with listen("127.0.0.1", 0) as listener, (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "service.supervise.lifeline", str(lifeline), str(vigil.writing), module),
                str(listener.fileno()),
            ],
            env=child_environment(settings, environment()),
            stdout=log,
            stderr=log,
            pass_fds=(lifeline, vigil.writing, listener.fileno()),
        )
        vigil.hand_over()
        try:
            for number in range(3):
                wait_for(f"sign {number}", lambda: hears(vigil, next(seconds)))
        finally:
            os.close(writing)
            process.wait(timeout=LIMIT_S)
            os.close(lifeline)
