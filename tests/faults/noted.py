"""The jobs and sweeps of the fault tests: their workers, of a stage or real, note what they do."""

from __future__ import annotations

from typing import Any


def noted_spec(number: int) -> dict[str, Any]:
    """A job of the stage's workers; ``num_samples`` tells the oracle the length of an epoch."""
    return {
        "name": f"noted-{number}",
        "entrypoint": "workers.recipes.digits:build",
        "config": {"num_samples": 40},
        "steps": 30 + number % 30,
        "workers": {"min": 1, "max": 1 + number % 3},
        "batch": {"global_size": 8},
        "checkpoint": {"every_steps": 5},
    }


def nameless_spec(number: int, **changes: Any) -> dict[str, Any]:
    """Such a job as a sweep or a configuration takes it, of one worker and few steps."""
    spec = {**noted_spec(number), "steps": 12, "workers": {"min": 1, "max": 1}, **changes}
    return {key: value for key, value in spec.items() if key != "name"}


def noted_sweep(number: int, **changes: Any) -> dict[str, Any]:
    """A sweep of such jobs, which all come to the same."""
    return {
        "name": f"noted-{number}",
        "job": nameless_spec(number),
        "space": {"optimizer.lr": {"log_uniform": [1e-4, 1e-1]}},
        "metric": "loss",
        "mode": "min",
        "sampler": "random",
        "pruner": "none",
        "trials": 3,
        "parallel": 2,
        **changes,
    }
