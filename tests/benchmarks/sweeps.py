"""What a sweep costs: against Ray Tune with OptunaSearch, side by side, each sweep on a cluster of its own.

    python -m tests.benchmarks.sweeps --output results.jsonl             digits, 32 trials of at most 15 epochs, ASHA
    python -m tests.benchmarks.sweeps --one-step --output results.jsonl  100 trials of one step: milliseconds a trial

All sides search the same space with TPE, two trials at a time, one CPU and one thread each, over the same recipe, batch
and optimizer; the sides take turns, in another order each time. The clock runs from the call that begins a sweep to its
end; starting Ray or the service is not in it, starting the processes of trials is. A later call with the same
``--output`` goes on where an earlier one stopped.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks import sweeps_ours, sweeps_tune
from tests.benchmarks.command import parser_of, tell_result
from tests.benchmarks.figures import append_result, in_words, ratio_line, spread_document
from tests.benchmarks.leaving import leave_in_order
from tests.benchmarks.sweeps_setting import Outcome, Search

OURS = sweeps_ours.SIDE
WANTED = {"tune": 10.0, "tune_reuse": 2.0, "tune_class_reuse": 1.0, "tune_class_reuse_quiet": 1.0}
SIDES_OF_A_SWEEP = (OURS, "tune_reuse", "tune")
SIDES_OF_ONE_STEP = (OURS, "tune_class_reuse_quiet", "tune_class_reuse")
LIBRARIES = ("ray", "torch", "optuna")
MAX_LOSS = 0.005


def main() -> None:
    """Measure what is left to measure, and print all of it."""
    leave_in_order()
    options = _options()
    kind = "sweeps.one_step" if options.one_step else "sweeps"
    sides = options.sides or (SIDES_OF_ONE_STEP if options.one_step else SIDES_OF_A_SWEEP)
    outcomes = earlier(options.output, kind, options)
    try:
        for seed in range(options.seeds):
            search = _search(options, seed)
            for side in _in_turn(sides, seed):
                if any((known.side, known.seed) == (side, seed) for known in outcomes):
                    continue
                outcomes.append(_run(side)(search))
                _tell(outcomes[-1])
                append_result(options.output, kind, {**asdict(outcomes[-1]), **_asked(options)})
    finally:
        _summarise(outcomes, sides, options, kind)


def _options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--one-step", action="store_true", help="trials of one step each, none pruned")
    parser.add_argument("--trials", type=int, help="of a sweep; 32, or 100 of one step")
    parser.add_argument("--epochs", type=int, default=15, help="of a trial, at most")
    parser.add_argument("--seeds", type=int, default=5, help="sweeps a side")
    parser.add_argument("--sides", nargs="+", choices=(OURS, *sweeps_tune.SIDES))
    options = parser.parse_args()
    options.trials = options.trials or (100 if options.one_step else 32)
    return options


def _search(options: argparse.Namespace, seed: int) -> Search:
    return Search(trials=options.trials, epochs=options.epochs, steps=1 if options.one_step else None, seed=seed)


def _asked(options: argparse.Namespace) -> dict[str, int]:
    return {"asked_trials": options.trials, "asked_epochs": options.epochs}


def _in_turn(sides: Iterable[str], seed: int) -> list[str]:
    known = list(sides)
    return known[seed % len(known) :] + known[: seed % len(known)]


def _run(side: str) -> Callable[[Search], Outcome]:
    return sweeps_ours.run if side == OURS else functools.partial(sweeps_tune.run, side)


def earlier(output: Path | None, kind: str, options: argparse.Namespace) -> list[Outcome]:
    """Of an earlier call for the same search."""
    if output is None or not output.exists():
        return []
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    asked = _asked(options)
    return [
        Outcome(**{name: row[name] for name in Outcome.__dataclass_fields__})
        for row in rows
        if row["kind"] == kind and {name: row[name] for name in asked} == asked
    ]


def _tell(outcome: Outcome) -> None:
    a_trial = f"{1000 * outcome.wall_s / outcome.trials:.0f} ms a trial"
    steady = "" if outcome.steady_ms is None else f" (later ones {outcome.steady_ms:.0f})"
    found = f"{outcome.epochs:.0f} epochs, best {outcome.best:.4f}, load {outcome.load_1min}"
    print(f"seed {outcome.seed}  {outcome.side:22s} {outcome.wall_s:7.2f} s, {a_trial}{steady}; {found}", flush=True)


def _summarise(outcomes: list[Outcome], sides: Iterable[str], options: argparse.Namespace, kind: str) -> None:
    print()
    by_side = {side: [outcome for outcome in outcomes if outcome.side == side] for side in sides}
    figures = {side: _figures(side, found) for side, found in by_side.items() if found}
    ours = by_side.get(OURS, [])
    for side, theirs in by_side.items():
        if side == OURS or not ours or not theirs:
            continue
        print(_compared(side, ours, theirs))
        if not options.one_step:
            lost = statistics.median(o.best for o in theirs) - statistics.median(o.best for o in ours)
            print(f"  median accuracy: ours {-lost:+.4f}; wanted: at least -{MAX_LOSS}")
    tell_result(options.output, f"{kind}.summary", LIBRARIES, {**_asked(options), **figures})


def _compared(side: str, ours: list[Outcome], theirs: list[Outcome]) -> str:
    return ratio_line(f"{OURS} against {side}", [o.wall_s for o in ours], [o.wall_s for o in theirs], WANTED[side])


def _figures(side: str, found: list[Outcome]) -> dict[str, object]:
    """Print the spread of each figure of a side; gives them."""
    figures = {
        "wall_s": [o.wall_s for o in found],
        "trial_ms": [1000 * o.wall_s / o.trials for o in found],
        "later_trial_ms": [o.steady_ms for o in found if o.steady_ms is not None],
        "epochs": [o.epochs for o in found if o.epochs],
        "epoch_ms": [1000 * o.wall_s / o.epochs for o in found if o.epochs],
        "best_percent": [100 * o.best for o in found],
    }
    for name, values in figures.items():
        what, _, unit = name.rpartition("_")
        print(f"{side:22s} {what or unit:12s} {in_words(values, unit)}")
    return {name: spread_document(values) for name, values in figures.items()}


if __name__ == "__main__":
    main()
