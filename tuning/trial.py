"""One trial as it is recorded: what was chosen, what it reported, how it ended. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
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


def last_value(reports: Sequence[Report]) -> float | None:
    """What was reported last; None before the first report, and where that is no number."""
    return reports[-1].value if reports and math.isfinite(reports[-1].value) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A trial that ran took over the state of trial ``donor``, of ``samples``, and trains on with ``params``.

    ``before`` are those that it had, ``given_up`` the samples of its own last report; ``time`` is Unix seconds.
    ``donor`` is None where that state could not be had, and the trial trained its own on.
    """

    samples: int
    params: Params
    before: Params
    donor: int | None
    given_up: int
    reason: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A row of the store. ``reports`` are in order of samples; ``value`` is the result, once it is COMPLETE.

    ``seconds`` are those of its workers, summed. ``params`` are those of now; ``changes`` tell which it had before,
    the oldest first. ``is_changing``: others were decided, and it has not reported with them yet.
    """

    number: int
    params: Params
    state: TrialState
    value: float | None = None
    reports: tuple[Report, ...] = ()
    seconds: float = 0.0
    job_id: str = ""
    changes: tuple[Change, ...] = ()
    is_changing: bool = False

    @property
    def samples(self) -> int:
        """How far it is."""
        return self.reports[-1].samples if self.reports else 0

    @property
    def first_params(self) -> Params:
        """What it began with."""
        return self.changes[0].before if self.changes else self.params

    def params_at(self, samples: int) -> Params:
        """What it had when it reported at so many samples, of the reports that still count."""
        met = [change.params for change in self.changes if change.samples < samples]
        return met[-1] if met else self.first_params
