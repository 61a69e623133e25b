"""What a lost worker, a lost machine and a resize cost: seconds to the next optimizer step, and steps lost.

    python -m tests.benchmarks.recovery --repeats 10 --output results.jsonl
    python -m tests.benchmarks.recovery --repeats 100 --changes kill --sides concertina
    python -m tests.benchmarks.recovery --repeats 10 --changes stop --sides concertina

Our controller and workers, Ray Train's elastic TorchTrainer and torchrun's elastic agents, side by side, at the same
time on this machine: the same MLP, batch, pace and checkpoint interval, two machines of one worker each. The changes
take turns: one side is changed while the others train. Times and lost steps come from what the optimizers
themselves wrote down (``paced_task``). A later call goes on until ``--output`` holds ``--repeats`` of each.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks.figures import append_result, circumstances, versions
from tests.benchmarks.leaving import leave_in_order
from tests.benchmarks.recovery_changes import ACTS, UNASKED, Change, measure, settle
from tests.benchmarks.recovery_ours import concertina
from tests.benchmarks.recovery_ray_train import ray_train
from tests.benchmarks.recovery_results import KIND, STUCK, earlier, in_lines, num_measured
from tests.benchmarks.recovery_setting import Setting, Side
from tests.benchmarks.recovery_torchrun import torchrun

SETTING = Setting()
SIDES: Mapping[str, Callable[[Path, Setting], AbstractContextManager[Side]]] = {
    "concertina": concertina,
    "ray_train": ray_train,
    "torchrun": torchrun,
}


def main() -> None:
    """Measure what is left to measure, and print all of it."""
    leave_in_order()
    options = _options()
    changes = earlier(options.output)
    about = {"versions": versions("ray", "torch"), **circumstances()}
    print(about, flush=True)
    append_result(options.output, "recovery.run", about)
    try:
        with tempfile.TemporaryDirectory(prefix="ct-bench-") as name, ExitStack() as stack:
            sides = []
            for side in options.sides:
                folder = Path(name) / side
                folder.mkdir()
                sides.append(stack.enter_context(SIDES[side](folder, SETTING)))
            _measure(sides, changes, options)
    finally:
        print("\n".join(in_lines(changes)), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=10, help="of each change, a side")
    parser.add_argument("--changes", nargs="+", choices=ACTS, default=list(UNASKED))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin no change after so many seconds")
    parser.add_argument("--output", type=Path, help="file of results, one JSON line a change")
    parser.add_argument("--seed", type=int, default=0, help="chooses the victims and moments")
    return parser.parse_args()


def _measure(sides: list[Side], changes: list[Change], options: argparse.Namespace) -> None:
    """Add to ``changes`` what is not in it yet."""
    chance = random.Random(options.seed + len(changes))
    until_s = time.monotonic() + options.limit_s
    for side in sides:
        settle(side, SETTING, 2)
    for turn in range(options.repeats):
        for what in options.changes:
            for side in sides:
                if num_measured(changes, what, side.name) > turn or time.monotonic() > until_s:
                    continue
                try:
                    changes.append(measure(what, side, SETTING, chance))
                except (TimeoutError, RuntimeError) as error:
                    append_result(options.output, STUCK, {"what": what, "side": side.name, "error": str(error)})
                    raise
                _tell(changes[-1], turn, options.output)


def _tell(change: Change, turn: int, output: Path | None) -> None:
    print(
        f"{turn + 1:4d}  {change.side:10s}  {change.what:9s}  {change.seconds:8.3f} s"
        f"  longest gap {change.gap_s:8.3f} s  steps lost {change.lost}  load {change.load_1min}",
        flush=True,
    )
    append_result(output, KIND, asdict(change))


if __name__ == "__main__":
    main()
