"""Seconds from the SIGKILL of a worker to the next optimizer step by anyone, and of resizes 2 to 1 to 2.

    python -m tests.benchmarks.recovery --kills 10 --resizes 3 --output results.jsonl
    python -m tests.benchmarks.recovery --kills 100 --resizes 0 --ours-only

Our controller and workers against Ray Train's elastic TorchTrainer, on one local Ray, at the same time: the same
MLP, batch, pace and checkpoint interval. Kills alternate between the sides; each begins when that side trains with
two workers again. Times and lost steps come from what the optimizers themselves wrote down (``paced_task``).
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from tests.benchmarks.audit import Step, first_after_change, longest_gap_s, members, steps_lost
from tests.benchmarks.figures import append_result, circumstances, in_words, ratio_line, spread_document, versions
from tests.benchmarks.leaving import leave_in_order
from tests.benchmarks.own_ray import own_ray
from tests.benchmarks.recovery_rival import RayTrainSide
from tests.benchmarks.recovery_setting import Setting, Side

NUM_CPUS = 4
WAIT_S = 300.0
LOOK_S = 0.02
RECENT_S = 1.0
SETTLED_STEPS = 20
WANTED_TIMES = 30.0

Found = TypeVar("Found")
Table: TypeAlias = defaultdict[str, defaultdict[str, list[float]]]
"""What was changed, then which side: the values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One measured change.

    ``seconds`` to the first step of the new group, ``gap_s`` the longest time without a step by anyone.
    """

    what: str
    side: str
    seconds: float
    gap_s: float
    lost: int


def main() -> None:
    """Measure and print."""
    leave_in_order()
    options = _options()
    setting = Setting()
    with tempfile.TemporaryDirectory(prefix="ct-bench-") as name:
        folder = Path(name)
        with own_ray(folder, NUM_CPUS) as address:
            sides = _start(options, address, folder, setting)
            try:
                changes = _measure(sides, setting, options)
            finally:
                for side in sides:
                    side.stop()
    _print(changes, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=10, help="SIGKILLs a side")
    parser.add_argument("--resizes", type=int, default=3, help="rounds of 2 to 1 to 2 a side")
    parser.add_argument("--output", type=Path, help="file that takes one JSON line a measurement")
    parser.add_argument("--seed", type=int, default=0, help="chooses the victims and moments")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--ours-only", action="store_true")
    only.add_argument("--rival-only", action="store_true")
    return parser.parse_args()


def _start(options: argparse.Namespace, address: str, folder: Path, setting: Setting) -> list[Side]:
    sides: list[Side] = []
    if not options.rival_only:
        from tests.benchmarks.recovery_ours import ConcertinaSide

        sides.append(ConcertinaSide(address, folder / "ours", setting))
        leave_in_order()
    if not options.ours_only:
        sides.append(RayTrainSide(address, folder / "rival", setting))
    for side in sides:
        _wait_settled(side, setting, 2)
    return sides


def _measure(sides: list[Side], setting: Setting, options: argparse.Namespace) -> list[Change]:
    chance = random.Random(options.seed)
    changes = []
    for turn in range(options.kills):
        for side in sides:
            changes.append(_kill(side, setting, chance))
            _tell(changes[-1], turn, options.output)
    for turn in range(options.resizes):
        for num_workers in (1, 2):
            for side in sides:
                changes.append(_resize(side, setting, num_workers))
                _tell(changes[-1], turn, options.output)
    return changes


def _kill(side: Side, setting: Setting, chance: random.Random) -> Change:
    """SIGKILL one of the two, at a random moment within a step."""
    time.sleep(chance.uniform(0.0, 4 * setting.pace_s))
    before = _wait_for(side, "two workers that train", lambda: _members(side, 2))
    victim = chance.choice(sorted(before))
    at_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    first = _wait_for(side, f"a step after the SIGKILL of {victim}", lambda: _first(side, at_s, before))
    change = _change("kill", side, at_s, first)
    _wait_settled(side, setting, 2)
    return change


def _resize(side: Side, setting: Setting, num_workers: int) -> Change:
    before = _wait_for(side, "a whole group", lambda: _members(side, 3 - num_workers))
    at_s = time.monotonic()
    side.scale(num_workers)
    first = _wait_for(side, f"a step with {num_workers} workers", lambda: _first(side, at_s, before))
    change = _change(f"resize_to_{num_workers}", side, at_s, first)
    _wait_settled(side, setting, num_workers)
    return change


def _members(side: Side, num_workers: int) -> dict[int, int] | None:
    """Who trains now, once that is the number expected."""
    now = members(side.audit.steps(), time.monotonic(), RECENT_S)
    return now if len(now) == num_workers else None


def _first(side: Side, at_s: float, before: Mapping[int, int]) -> Step | None:
    return first_after_change(side.audit.steps(), at_s, before)


def _change(what: str, side: Side, at_s: float, first: Step) -> Change:
    steps = side.audit.steps()
    return Change(
        what=what,
        side=side.name,
        seconds=first.time_s - at_s,
        gap_s=longest_gap_s(steps, at_s, first),
        lost=steps_lost(steps, first),
    )


def _wait_settled(side: Side, setting: Setting, num_workers: int) -> None:
    """Until exactly so many processes share the batch and the latest of them has taken some steps."""
    part = setting.global_size // num_workers

    def is_settled() -> bool | None:
        steps = side.audit.steps()
        now = members(steps, time.monotonic(), RECENT_S)
        taken = [sum(s.pid == pid and s.size == part for s in steps[-8 * SETTLED_STEPS :]) for pid in now]
        is_whole = len(now) == num_workers and set(now.values()) == {part}
        return True if is_whole and min(taken) >= SETTLED_STEPS else None

    _wait_for(side, f"{num_workers} workers that train", is_settled)


def _wait_for(side: Side, what: str, look: Callable[[], Found | None]) -> Found:
    deadline_s = time.monotonic() + WAIT_S
    while (found := look()) is None:
        side.check()
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{side.name}: no {what} within {WAIT_S:.0f} s")
        time.sleep(LOOK_S)
    return found


def _tell(change: Change, turn: int, output: Path | None) -> None:
    print(
        f"{turn + 1:4d}  {change.side:10s}  {change.what:12s}  {change.seconds:8.3f} s"
        f"  longest gap {change.gap_s:8.3f} s  steps lost {change.lost}",
        flush=True,
    )
    append_result(output, "recovery.change", asdict(change))


def _print(changes: list[Change], options: argparse.Namespace) -> None:
    seconds: Table = defaultdict(lambda: defaultdict(list))
    gaps: Table = defaultdict(lambda: defaultdict(list))
    lost: dict[str, list[int]] = defaultdict(list)
    for change in changes:
        seconds[change.what][change.side].append(change.seconds)
        gaps[change.what][change.side].append(change.gap_s)
        lost[change.side].append(change.lost)
    for side in lost:
        pairs = zip(gaps["resize_to_1"][side], gaps["resize_to_2"][side], strict=True)
        gaps["resize_2_1_2"][side] = [down + up for down, up in pairs]
    print("\nto the first step of the new group")
    _print_table(seconds)
    print("longest gap between steps of anyone meanwhile; 2_1_2: both added")
    _print_table(gaps)
    for side, counts in lost.items():
        print(f"optimizer steps lost, {side}: {sum(counts)} in {len(counts)} changes, {max(counts)} at most")
    about = {"versions": versions("ray", "torch"), **circumstances()}
    print(about)
    tables = {
        name: {what: {side: spread_document(v) for side, v in by_side.items()} for what, by_side in table.items()}
        for name, table in (("seconds", seconds), ("gap_s", gaps))
    }
    append_result(options.output, "recovery.summary", {**about, **tables, "lost": dict(lost)})


def _print_table(table: Table) -> None:
    for what, by_side in table.items():
        for side, values in by_side.items():
            print(f"  {what:12s} {side:10s} {in_words(values, 's')}")
        if len(by_side) == 2 and all(by_side.values()):
            print("  " + ratio_line(what, by_side["concertina"], by_side["ray_train"], WANTED_TIMES))


if __name__ == "__main__":
    main()
