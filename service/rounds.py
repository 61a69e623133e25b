"""Rounds of several optimizer steps, as local steps have them: what a step takes of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

Told: TypeAlias = Mapping[str, float | None]
"""Telemetry of a round by key."""


def num_steps(told: Told) -> float:
    """Optimizer steps of a round; most are one."""
    return told.get("round_steps") or 1.0


def most_steps(rounds: Iterable[Told]) -> int:
    """Of the longest round; 1 where there is none."""
    return int(max(map(num_steps, rounds), default=1.0))


def a_step(rounds: Iterable[Told], key: str) -> float | None:
    """The mean over steps of what rounds tell of all of theirs (seconds, bytes); None where none tells it."""
    pairs = [(v, num_steps(told)) for told in rounds if (v := told.get(key)) is not None and math.isfinite(v)]
    return sum(value for value, _ in pairs) / sum(num for _, num in pairs) if pairs else None
