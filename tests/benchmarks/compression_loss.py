"""What fewer bytes cost in loss: every scheme against dense gradients, paired by seed, and one that must do worse.

Two ranks train a recipe from the same weights on the same samples. A difference is that of the evaluation loss at the
end; its interval is Student's, of 95 %, over the seeds. Loads of the machine change nothing of it.

    python -m tests.benchmarks.compression_loss [digits|chargpt ...] [--seeds N] [--steps N] [--schemes NAME ...]
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

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


def measure(recipe: str, optimizer: str, steps: int, seeds: int, names: Sequence[str]) -> dict[str, list[float]]:
    """Final losses by scheme, a seed each; ``none`` is the first. Prints as it goes."""
    found: dict[str, list[float]] = {}
    for name in ("none", *names):
        settings = [Setting(recipe=recipe, optimizer=optimizer, steps=steps, seed=seed) for seed in range(seeds)]
        found[name] = [train(setting, name) for setting in settings]
        differences = [loss - dense for loss, dense in zip(found[name], found["none"], strict=True)]
        print(
            f"{recipe} {optimizer} {steps} steps, {name:10} loss {statistics.mean(found[name]):.4f}, "
            f"{statistics.mean(differences):+.4f} ± {interval(differences):.4f} "
            f"(seeds differ by {statistics.stdev(found[name]):.4f}, n={seeds})",
            flush=True,
        )
    return found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("recipes", nargs="*", default=[*RECIPES], choices=[*RECIPES])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--schemes", nargs="*", default=schemes(), choices=schemes())
    parser.add_argument("--optimizers", nargs="*", default=[*OPTIMIZERS], choices=OPTIMIZERS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for recipe in given.recipes:
        for optimizer in given.optimizers:
            names = [name for name in given.schemes if optimizer == "sgd" or "momentum" not in VARIANTS.get(name, {})]
            losses = measure(recipe, optimizer, given.steps, given.seeds, names)
            tell_result(given.output, f"compression loss {recipe} {optimizer}", ("torch",), {"losses": losses})
    await_released(RELEASE_S)


if __name__ == "__main__":
    main()
