"""The changes that the recovery measurement makes to a side, each with what it cost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import psutil

from tests.benchmarks.audit import Step, first_after_change, longest_gap_s, members, steps_lost
from tests.benchmarks.recovery_setting import Setting, Side

WAIT_S = 180.0
LOOK_S = 0.02
RECENT_S = 1.0
SETTLED_STEPS = 20

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One measured change.

    ``seconds`` to the first step of the new group, ``gap_s`` the longest time without a step by anyone,
    ``lost`` optimizer steps, ``load_1min`` the machine's load average after it.
    """

    what: str
    side: str
    seconds: float
    gap_s: float
    lost: int
    load_1min: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What is done to a side of ``num_before`` workers, which then has ``num_after`` once ``undo`` is done.

    ``do`` gives when it was done, monotonic seconds.
    """

    num_before: int
    num_after: int
    do: Callable[[Side, random.Random], float]
    undo: Callable[[Side], None] | None = None


def measure(what: str, side: Side, setting: Setting, chance: random.Random) -> Change:
    """Make one change at a random moment between checkpoints and see what the optimizers did; ends when all is calm.

    Raises TimeoutError when the side does not come to train in a bounded time, RuntimeError when it has ended.
    """
    act = ACTS[what]
    settle(side, setting, act.num_before)
    side.prepare()
    time.sleep(chance.uniform(0.0, 2 * setting.checkpoint_every * setting.pace_s))
    before = _wait_for(side, f"{act.num_before} workers", lambda: _members(side, act.num_before))
    at_s = act.do(side, chance)
    first = _wait_for(side, f"step after {what}", lambda: _first(side, at_s, before))
    steps = side.audit.steps()
    change = Change(
        what=what,
        side=side.name,
        seconds=first.time_s - at_s,
        gap_s=longest_gap_s(steps, at_s, first),
        lost=steps_lost(steps, first),
        load_1min=round(os.getloadavg()[0], 2),
    )
    if act.undo is not None:
        act.undo(side)
    settle(side, setting, act.num_after)
    return change


def settle(side: Side, setting: Setting, num_workers: int) -> None:
    """Bring a side to a size: exactly so many processes share the batch and each has taken some steps.

    Raises as ``measure`` does.
    """
    side.scale(num_workers)
    part = setting.global_size // num_workers

    def is_settled() -> bool | None:
        steps = side.audit.steps()
        now = members(steps, time.monotonic(), RECENT_S)
        taken = [sum(s.pid == pid and s.size == part for s in steps[-8 * SETTLED_STEPS :]) for pid in now]
        is_whole = len(now) == num_workers and set(now.values()) == {part}
        return True if is_whole and min(taken) >= SETTLED_STEPS else None

    _wait_for(side, f"{num_workers} workers that train", is_settled)


def _members(side: Side, num_workers: int) -> dict[int, int] | None:
    """Who trains now, once that is the number expected."""
    now = members(side.audit.steps(), time.monotonic(), RECENT_S)
    return now if len(now) == num_workers else None


def _first(side: Side, at_s: float, before: Mapping[int, int]) -> Step | None:
    return first_after_change(side.audit.steps(), at_s, before)


def _wait_for(side: Side, what: str, look: Callable[[], Found | None]) -> Found:
    deadline_s = time.monotonic() + WAIT_S
    while (found := look()) is None:
        side.check()
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{side.name}: no {what} within {WAIT_S:.0f} s")
        time.sleep(LOOK_S)
    return found


def _kill(side: Side, chance: random.Random) -> float:
    victim = chance.choice(sorted(members(side.audit.steps(), time.monotonic(), RECENT_S)))
    at_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    return at_s


def _stop(side: Side, chance: random.Random) -> float:
    """A process that hangs: it is there, its connections stand, and it says nothing."""
    victim = chance.choice(sorted(members(side.audit.steps(), time.monotonic(), RECENT_S)))
    at_s = time.monotonic()
    os.kill(victim, signal.SIGSTOP)
    return at_s


def _wake(side: Side) -> None:
    """Whoever was stopped and not ended meanwhile goes on, too late."""
    for pid in {step.pid for step in side.audit.steps()}:
        with contextlib.suppress(psutil.NoSuchProcess):
            if (process := psutil.Process(pid)).status() == psutil.STATUS_STOPPED:
                process.resume()


def _shrink(side: Side, chance: random.Random) -> float:
    return _scale(side, 1)


def _grow(side: Side, chance: random.Random) -> float:
    return _scale(side, 2)


def _scale(side: Side, num_workers: int) -> float:
    at_s = time.monotonic()
    side.scale(num_workers)
    return at_s


def _lose_node(side: Side, chance: random.Random) -> float:
    return side.lose_node()


ACTS: Mapping[str, Act] = {
    "kill": Act(num_before=2, num_after=2, do=_kill),
    "shrink": Act(num_before=2, num_after=1, do=_shrink),
    "grow": Act(num_before=1, num_after=2, do=_grow),
    "node_loss": Act(num_before=2, num_after=2, do=_lose_node, undo=lambda side: side.return_node()),
    "stop": Act(num_before=2, num_after=2, do=_stop, undo=_wake),
}
"""By what they are called in results, in the order in which they are made."""

UNASKED = tuple(what for what in ACTS if what != "stop")
"""Those that every side gets over within ``WAIT_S``: the rivals wait for a process that hangs for many minutes."""
