"""Learning curves of digits over a whole grid of lr, batch and width: what a sweep over it would see, and the truth.

    python -m tests.benchmarks.sweeps_grid --seeds 5

Appends one JSON line a seed to ``tests/benchmarks/results/sweeps_grid.jsonl``; what is there is not trained again.
Plain torch on one thread. It times nothing, so it may run on a busy machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.figures import ROOT

FILE = ROOT / "tests" / "benchmarks" / "results" / "sweeps_grid.jsonl"
LRS = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1)
BATCHES = (32, 64, 128, 256)
HIDDENS = (32, 64, 128, 256)
EPOCHS = 15
NUM_EVAL = 360

Point = tuple[float, int, int]
"""lr, batch, width."""

POINTS: tuple[Point, ...] = tuple(itertools.product(LRS, BATCHES, HIDDENS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """By point: accuracy after each epoch, with one seed."""

    seed: int
    accuracies: dict[Point, tuple[float, ...]]


def read_curves(file: Path = FILE) -> list[Curves]:
    """What was recorded over this grid; nothing where there is no file."""
    lines = file.read_text().splitlines() if file.exists() else []
    return list(_read(lines))


def _read(lines: list[str]) -> Iterator[Curves]:
    for line in lines:
        row = json.loads(line)
        if row["grid"] == _grid():
            told = (tuple(right / NUM_EVAL for right in curve) for curve in row["right"])
            yield Curves(seed=row["seed"], accuracies=dict(zip(POINTS, told, strict=True)))


def _grid() -> list[list[float]]:
    return [list(axis) for axis in (LRS, BATCHES, HIDDENS, (EPOCHS,))]


def _recorded(seed: int) -> str:
    from tests.benchmarks.sweeps_training import epochs_of

    curves = []
    for lr, batch, hidden in POINTS:
        told = epochs_of({"lr": lr, "batch": batch, "hidden": hidden}, EPOCHS, seed)
        curves.append([round(accuracy * NUM_EVAL) for accuracy in told])
    return json.dumps({"seed": seed, "grid": _grid(), "right": curves}, separators=(",", ":"))


def main() -> None:
    """Record what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--file", type=Path, default=FILE)
    options = parser.parse_args()
    known = {curves.seed for curves in read_curves(options.file)}
    for seed in sorted(set(range(options.seeds)) - known):
        line = _recorded(seed)
        with options.file.open("a") as stream:
            stream.write(line + "\n")
        print(f"seed {seed}: {len(POINTS)} points of {EPOCHS} epochs", flush=True)


if __name__ == "__main__":
    main()
