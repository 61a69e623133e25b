"""What a batch that grows costs in loss, with an optimizer's second moments following it and as they were before.

Two ranks train a recipe with AdamW, the same samples on all sides; after a quarter of them the batch becomes so many
times as large, its rate by the square root. A difference is that of the evaluation loss at the end to the same seed
whose batch stays small; its interval is Student's, of 95 %, over the seeds. Loads of the machine change nothing of it.

    python -m tests.benchmarks.grown_batch [digits|chargpt ...] [--seeds N] [--times 4 16] [--output FILE]
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tests.benchmarks.command import parser_of, tell_result
from tests.benchmarks.compression_loss import interval
from tests.training.group import Group
from tests.training.tasks import Script
from workers.recipes import chargpt, digits
from workers.status import Phase
from workers.task import TrainingTask
from workers.training import state

BATCH = 32
NUM_RANKS = 2
FOLLOWS, STAYS = "following", "as they were"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A task, its rate at ``BATCH`` samples, and how many samples it trains on."""

    build: Any
    config: dict[str, Any]
    lr: float
    samples: int

    def task(self) -> TrainingTask:
        task: TrainingTask = self.build(dict(self.config))
        return task


RECIPES = {
    "digits": Recipe(build=digits.build, config={}, lr=1e-3, samples=40_000),
    "chargpt": Recipe(
        build=chargpt.build,
        config={"dim": 64, "layers": 2, "context": 32, "max_bytes": 400_000},
        lr=1e-3,
        samples=60_000,
    ),
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("recipes", nargs="*", default=[*RECIPES], choices=[*RECIPES])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--times", type=int, nargs="+", default=[4, 16])
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.recipes:
        tell_result(
            given.output, "grown_batch", ("torch",), {"recipe": name, **measure(name, given.seeds, given.times)}
        )


def measure(name: str, seeds: int, times: list[int]) -> dict[str, list[float]]:
    """Losses by side, a seed each. Prints as it goes."""
    small = [trained(RECIPES[name], seed, 1, FOLLOWS) for seed in range(seeds)]
    print(f"{name}, batches of {BATCH}: loss {statistics.mean(small):.4f}, {min(small):.4f} to {max(small):.4f}")
    found = {"1": small}
    for factor in times:
        for side in (STAYS, FOLLOWS):
            losses = [trained(RECIPES[name], seed, factor, side) for seed in range(seeds)]
            apart = [loss - of_small for loss, of_small in zip(losses, small, strict=True)]
            told = f"{statistics.mean(apart):+.4f} ± {interval(apart):.4f}"
            print(f"{name}, then {factor} times, second moments {side}: {told} (n={seeds})", flush=True)
            found[f"{factor}, {side}"] = losses
    return found


def trained(recipe: Recipe, seed: int, factor: int, side: str) -> float:
    """The loss of the evaluation at the end."""
    spec = {
        "samples": recipe.samples,
        "seed": seed,
        "batch": {"global_size": BATCH, "micro_size": BATCH, "lr_rule": "sqrt"},
        "optimizer": {"lr": recipe.lr},
        "lr_schedule": {"warmup_fraction": 0.0, "decay": "cosine"},
    }
    line = recipe.samples // 4 // BATCH * BATCH
    with as_asked(side), Group(Script(task=recipe.task), **spec) as group:
        workers = group.start(NUM_RANKS)
        first = group.train(workers, until=line)
        group.await_all(lambda s: s.phase is Phase.HELD, workers, limit_s=600.0)
        group.agree(workers, generation=first.generation, global_batch=BATCH * factor)
        group.await_all(lambda s: s.phase is Phase.DONE, workers, limit_s=600.0)
        evaluated = [r.values["eval.loss"] for _, r in sorted(group.records.items()) if "eval.loss" in r.values]
    return evaluated[-1]


@contextmanager
def as_asked(side: str) -> Iterator[None]:
    """Second moments follow, or stay what they are, while the block runs."""
    follow = state.follow_batch
    if side == STAYS:
        state.follow_batch = lambda *_: None
    try:
        yield
    finally:
        state.follow_batch = follow


if __name__ == "__main__":
    main()
