"""What all sides of the measurement of sweeps search, and what they tell of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NUM_TRAIN = 1437  # of digits, one epoch
METRIC = "eval.accuracy"
ENTRYPOINT = "workers.recipes.digits:build"
LR, HIDDEN = (1e-4, 1e-1), (32, 512)
BATCHES = (16, 32, 64, 128, 256)
REDUCTION = 3
BASE_BATCH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How much is searched. ``epochs`` at most a trial; with ``steps`` each trial has so many, and none is pruned."""

    trials: int = 32
    parallel: int = 2
    epochs: int = 15
    steps: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one sweep came to: ``wall_s`` from the call that began it to its end, on a cluster that was up.

    ``epochs`` are those of all trials; ``steady_ms`` is a trial's share of the time from the end of the first fifth of
    the trials to that of the last, None where the ends are not known.
    """

    side: str
    seed: int
    wall_s: float
    best: float
    trials: int
    epochs: float
    steady_ms: float | None
    load_1min: float


def steady_ms(ends_s: list[float]) -> float | None:
    """Milliseconds a trial, without what comes once; from the times at which trials ended."""
    ends, first = sorted(ends_s), len(ends_s) // 5
    return 1000 * (ends[-1] - ends[first]) / (len(ends) - 1 - first) if len(ends) > 5 else None


def load_1min() -> float:
    """Of the machine."""
    return round(os.getloadavg()[0], 2)


def job(search: Search) -> dict[str, Any]:
    """The job of our trials: as in the rivals' loop the lr does not follow the batch, nor change on the way."""
    length: Mapping[str, Any] = {"epochs": search.epochs} if search.steps is None else {"steps": search.steps}
    return {
        "entrypoint": ENTRYPOINT,
        **length,
        "workers": 1,
        "batch": {"lr_rule": "none"},
        "lr_schedule": {"warmup_fraction": 0.0, "decay": "constant"},
        "checkpoint": {"every_steps": 1_000_000},
    }


def sweep(search: Search) -> dict[str, Any]:
    """The sweep as a user would write it for this."""
    batch = {"batch.global_size": {"choice": list(BATCHES)}} if search.steps is None else {}
    asha = {"asha": {"min_samples": NUM_TRAIN, "reduction": REDUCTION}}
    return {
        "name": "measured",
        "job": job(search),
        "space": {
            "optimizer.lr": {"log_uniform": list(LR)},
            **batch,
            "config.hidden": {"int": list(HIDDEN), "log": True},
        },
        "metric": METRIC,
        "mode": "max",
        "sampler": "tpe",
        "pruner": asha if search.steps is None else "none",
        "trials": search.trials,
        "parallel": search.parallel,
        "seed": search.seed,
    }
