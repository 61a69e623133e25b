"""Seconds to a set accuracy or loss: a batch that adapts by goodput against fixed ones, each with its rate by the rule.

    python -m tests.benchmarks.goodput [digits|chargpt ...] [--seeds 5] [--sides goodput 16 32 ...] --output FILE

Jobs of two workers by REST on the whole of `serve`, one after another; all sides of a seed in turns, in another order
each seed. The clock runs from the begin of a job's first step until the evaluation that meets the target has ended.
All sides evaluate after as many samples. What does not get there within its bounds is told as that. A later call with
the same ``--output`` goes on where an earlier one stopped.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from service.client import Client
from tests.benchmarks import goodput_run
from tests.benchmarks.command import parser_of, tell_result, temporary_service
from tests.benchmarks.figures import append_result, spread_document
from tests.benchmarks.goodput_run import ADAPTED, Case, Run

KIND = "goodput"
FIXED = ("16", "32", "64", "128", "256", "512")
WANTED_OF_BEST, WANTED_OF_SLOWEST = 1.05, 0.6

CASES = {
    "digits": Case(
        entrypoint="workers.recipes.digits:build",
        config={"model": "cnn"},
        lr=1e-4,
        metric="eval.accuracy",
        target=0.985,
        is_rising=True,
        eval_samples=2048,
        most_samples=150_000,
        bound_s=60.0,
    ),
    "chargpt": Case(
        entrypoint="workers.recipes.chargpt:build",
        config={"dim": 64, "layers": 2, "context": 32, "max_bytes": 400_000},
        lr=1e-3,
        metric="eval.loss",
        target=1.9,
        is_rising=False,
        eval_samples=4096,
        most_samples=150_000,
        bound_s=60.0,
    ),
}


def main() -> None:
    """Measure what is left to measure, and print all of it."""
    options = _options()
    names = list(options.cases)
    found = earlier(options.output, names)
    known = {(run.case, run.seed, run.side) for run in found}
    asked = [(n, s, side) for n in names for s in range(options.seeds) for side in in_turn(options.sides, n, s)]
    if left := [each for each in asked if each not in known]:
        _measure(left, found, options.output)
    for name in names:
        tell_result(options.output, f"{KIND}.summary", ("ray", "torch"), {"case": name, **summary(name, found)})


def _measure(asked: Sequence[tuple[str, int, str]], found: list[Run], output: Path | None) -> None:
    """Run what is asked for: cases, seeds, sides; each run is kept as soon as it is over."""
    with (
        temporary_service(num_cpus=2) as running,
        Client(f"http://127.0.0.1:{running.port}", running.token) as client,
    ):
        for name, seed, side in asked:
            found.append(goodput_run.run(client, name, CASES[name], side, seed))
            append_result(output, KIND, {**asdict(found[-1]), "target": CASES[name].target})
            _tell(found[-1])


def _options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sides", nargs="+", default=[ADAPTED, *FIXED], choices=(ADAPTED, *FIXED))
    return parser.parse_args()


def in_turn(sides: Sequence[str], case: str, seed: int) -> list[str]:
    """The sides in an order of this seed's own, the same at each call."""
    return random.Random(f"{case}/{seed}").sample(list(sides), len(sides))


def earlier(output: Path | None, names: Sequence[str]) -> list[Run]:
    """Runs of an earlier call."""
    if output is None or not output.exists():
        return []
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    fields = Run.__dataclass_fields__
    return [Run(**{n: row[n] for n in fields}) for row in rows if row["kind"] == KIND and row["case"] in names]


def summary(name: str, found: Sequence[Run]) -> dict[str, object]:
    """Print each side's seconds, and ours over those of the best fixed and of the slowest that always gets there."""
    print(f"\n{name}: {CASES[name].metric} {CASES[name].target}")
    sides = {side: [run for run in found if (run.case, run.side) == (name, side)] for side in (ADAPTED, *FIXED)}
    sides = {side: runs for side, runs in sides.items() if runs}
    for side, runs in sides.items():
        print(f"{side:>8s} {_in_words(runs)}")
    medians = {side: median for side, runs in sides.items() if (median := _median_s(runs)) is not None}
    fixed = {side: median for side, median in medians.items() if side != ADAPTED}
    figures: dict[str, object] = {side: spread_document(_seconds(runs)) for side, runs in sides.items()}
    figures["missed"] = {side: [run.seed for run in runs if run.seconds is None] for side, runs in sides.items()}
    if fixed and ADAPTED in medians:
        best, slowest = min(fixed, key=lambda side: fixed[side]), max(fixed, key=lambda side: fixed[side])
        ratios = medians[ADAPTED] / fixed[best], medians[ADAPTED] / fixed[slowest]
        print(
            f"goodput over the best fixed ({best}): {ratios[0]:.2f} (wanted {WANTED_OF_BEST}); "
            f"over the slowest that gets there ({slowest}): {ratios[1]:.2f} (wanted {WANTED_OF_SLOWEST})"
        )
        figures |= {"best": best, "slowest": slowest, "of_best": ratios[0], "of_slowest": ratios[1]}
    return figures


def _median_s(runs: Sequence[Run]) -> float | None:
    """Of all runs, one that did not get there counting as longest; None where most did not."""
    median = statistics.median_high([float("inf") if run.seconds is None else run.seconds for run in runs])
    return None if median == float("inf") else median


def _seconds(runs: Sequence[Run]) -> list[float]:
    return [run.seconds for run in runs if run.seconds is not None]


def _in_words(runs: Sequence[Run]) -> str:
    seconds, missed = _seconds(runs), [run for run in runs if run.seconds is None]
    best = ", ".join(f"{run.best:.4f} (seed {run.seed})" for run in missed)
    without = f"; {len(missed)} of {len(runs)} not within bounds, at best {best}" if missed else ""
    if not seconds:
        return f"never{without}"
    median_s = _median_s(runs)
    told = "no median" if median_s is None else f"median {median_s:.2f} s"
    return f"{told} ({min(seconds):.2f} to {max(seconds):.2f}, {len(seconds)}){without}"


def _tell(run: Run) -> None:
    within = f"never in {run.trained_s:.0f} s (best {run.best:.4f})"
    took = within if run.seconds is None else f"{run.seconds:6.2f} s"
    noise = "" if run.noise_scale is None else f", noise scale {run.noise_scale:.0f}"
    trail = " ".join(f"{batch}@{at_s:.1f}" for at_s, batch in run.batches)
    done = f"{run.steps} steps, {run.samples} samples"
    print(f"{run.case} seed {run.seed} {run.side:>8s} {took}, {done}, {trail}{noise}, load {run.load_1min}", flush=True)
    for reason in run.judged:
        print(f"         {reason}", flush=True)


if __name__ == "__main__":
    main()
