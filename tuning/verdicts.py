"""What a pruner may decide about a trial, and what every pruner is. Pure.

A decision is a function of the recorded trials alone, so it can be replayed from their reports. Everything is
counted in samples, which mean the same at every batch size and number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tuning.spec_parts import Mode
from tuning.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Continue:
    """Train on."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Hold at the rung, given in samples, with the state kept: the trial may be promoted later."""

    rung: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End for good, as PRUNED."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote:
    """Let the trial of that number, which waits at ``rung``, train on."""

    number: int
    rung: int
    reason: str


Decision: TypeAlias = Continue | Pause | Stop


class Pruner(Protocol):
    """Decides which trials go on."""

    @property
    def rungs(self) -> tuple[int, ...]:
        """Numbers of samples at which trials are compared; a report at each, or soon after, makes them comparable."""

    def decide(self, trial: Trial, others: Iterable[Trial]) -> Decision:
        """What becomes of a running trial whose last report has just come.

        ``others`` are all other trials of the sweep, whatever their state. Asked once a report, in the order in
        which reports came.
        """

    def promote(self, trials: Iterable[Trial], *, can_start: bool) -> Promote | None:
        """Which waiting trial to let on, where there is room for one; promotions go before new trials.

        ``can_start`` says whether there are trials left to start. Where there are none and nothing runs, the
        best of a rung goes on even if too few have come there, so that a sweep ends with a trial that is
        complete; None at that point means that what still waits is PRUNED.
        """


def score(value: float, mode: Mode) -> float:
    """The value turned so that more is better; what is no number is worse than anything."""
    if not math.isfinite(value):
        return -math.inf
    return value if mode == "max" else -value


def not_finite(trial: Trial) -> Stop | None:
    """Stops a trial whose last report is no number: nothing good can come of it."""
    last = trial.reports[-1]
    if math.isfinite(last.value):
        return None
    return Stop(reason=f"reported {last.value} after {last.samples:,} samples")
