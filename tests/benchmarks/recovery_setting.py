"""What both sides of the recovery measurement have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tests.benchmarks.audit import Audit


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The training: one step every ``pace_s`` and a little, a checkpoint every ``checkpoint_every`` steps."""

    pace_s: float = 0.05
    hidden: int = 600
    global_size: int = 32
    checkpoint_every: int = 10


class Side(Protocol):
    """One system that trains with one or two workers."""

    name: str
    audit: Audit

    def scale(self, num_workers: int) -> None:
        """Order a size; returns at once."""
        ...

    def check(self) -> None:
        """Raises RuntimeError when the job is not going on."""
        ...

    def stop(self) -> None:
        """End the job and whatever drives it."""
        ...
