"""One trial as it is recorded: what was chosen, what it reported, how it ended. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tuning.values import Params


class TrialState(StrEnum):
    """States of a trial (contract, part 2b). WAITING: not started, or held at a rung."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    FAILED = "FAILED"


ENDED = frozenset((TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A value of the sweep's metric after ``samples`` samples of training."""

    samples: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A row of the store. ``reports`` are in order of samples; ``value`` is the result, once it is COMPLETE.

    ``seconds`` are those of its workers, summed.
    """

    number: int
    params: Params
    state: TrialState
    value: float | None = None
    reports: tuple[Report, ...] = ()
    seconds: float = 0.0
    job_id: str = ""

    @property
    def samples(self) -> int:
        """How far it is."""
        return self.reports[-1].samples if self.reports else 0
