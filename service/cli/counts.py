"""Whether a job that has ended trained what it was told to: each step once, each with the whole global batch. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def wrong_counts(job: dict[str, Any], points: Sequence[dict[str, Any]]) -> list[str]:
    """What does not add up, in words; empty where all is right.

    ``job`` is one with ``steps``, as REST shows it; ``points`` are its metrics with ``global_batch``, none left out.
    """
    done, batch, num_steps = job["progress"], job["spec"]["batch"]["global_size"], job["spec"]["steps"]
    faults = []
    if done["samples"] != num_steps * batch:
        faults.append(f"{done['samples']} samples were trained, not {num_steps * batch}")
    steps = [point["step"] for point in points]
    if steps != list(range(1, num_steps + 1)):
        faults.append(f"the records of steps are not 1 to {num_steps}, each once: {_gap(steps)}")
    partial = [point for point in points if point["values"].get("global_batch") != batch]
    if partial:
        first = partial[0]
        faults.append(
            f"{len(partial)} of {len(points)} steps had another batch than {batch}, the first one step "
            f"{first['step']} with {first['values'].get('global_batch')}"
        )
    return faults


def _gap(steps: list[int]) -> str:
    for expected, seen in enumerate(steps, start=1):
        if seen != expected:
            return f"step {seen} stands where {expected} should"
    return f"there are {len(steps)}"
