"""The jobs of the fault tests: their workers, of a stage or real, note what they do."""

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
