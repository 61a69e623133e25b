"""What fewer bytes cost in loss: every scheme against dense gradients, paired by seed, and one that must do worse.

Ranks, two unless said otherwise, train a recipe from the same weights on the same samples. A difference is that of the
evaluation loss at the end; its interval is Student's, of 95 %, over the seeds. A seed that diverges is counted, and in
none of these figures. Loads of the machine change nothing.

    python -m tests.benchmarks.compression_loss [digits|chargpt ...] [--seeds N] [--steps N] [--ranks N]
        [--schemes NAME ...] [--optimizers NAME ...]
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import torch
from scipy import stats  # type: ignore[import-untyped]  # the package has no types

from tests.benchmarks.command import parser_of, tell_result
from tests.benchmarks.compression_training import RECIPES, VARIANTS, Setting, schemes, train
from workers.training.world import await_released

OPTIMIZERS = ("adamw", "sgd")
CONFIDENCE = 0.95
RELEASE_S = 10.0


def interval(differences: Sequence[float]) -> float:
    """Half the width of Student's interval of the mean; at least two differences."""
    error = statistics.stdev(differences) / len(differences) ** 0.5
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, len(differences) - 1)) * error


def measure(like: Setting, seeds: int, names: Sequence[str]) -> dict[str, list[float]]:
    """Final losses by scheme, a seed each; ``none`` is the first. Prints as it goes."""
    found: dict[str, list[float]] = {}
    for name in ("none", *names):
        settings = [replace(like, seed=seed) for seed in range(seeds)]
        found[name] = [train(setting, name) for setting in settings]
        where = f"{like.recipe} {like.optimizer} {like.steps} steps, {like.num_ranks} ranks"
        print(f"{where}, {name:10} {in_figures(found[name], found['none'])}", flush=True)
    return found


def in_figures(losses: Sequence[float], dense: Sequence[float]) -> str:
    """Losses by a scheme, and what they are above dense ones of the same seeds."""
    ended = [(loss, paired) for loss, paired in zip(losses, dense, strict=True) if math.isfinite(loss)]
    diverged = f", {len(losses) - len(ended)} diverged" if len(ended) < len(losses) else ""
    if len(ended) < 2:
        return f"n={len(ended)}{diverged}"
    differences = [loss - paired for loss, paired in ended]
    return (
        f"loss {statistics.mean(loss for loss, _ in ended):.4f}, "
        f"{statistics.mean(differences):+.4f} ± {interval(differences):.4f} "
        f"(seeds differ by {statistics.stdev(loss for loss, _ in ended):.4f}, n={len(ended)}{diverged})"
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("recipes", nargs="*", default=[*RECIPES], choices=[*RECIPES])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=2, choices=(1, 2, 4), help="batches are divided evenly")
    parser.add_argument("--schemes", nargs="*", default=schemes(), choices=schemes())
    parser.add_argument("--optimizers", nargs="*", default=[*OPTIMIZERS], choices=OPTIMIZERS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for recipe in given.recipes:
        for optimizer in given.optimizers:
            names = [name for name in given.schemes if optimizer == "sgd" or "momentum" not in VARIANTS.get(name, {})]
            like = Setting(recipe=recipe, optimizer=optimizer, steps=given.steps, seed=0, num_ranks=given.ranks)
            figures = {"losses": measure(like, given.seeds, names), "num_ranks": given.ranks}
            tell_result(given.output, f"compression loss {recipe} {optimizer}", ("torch",), figures)
    await_released(RELEASE_S)


if __name__ == "__main__":
    main()
