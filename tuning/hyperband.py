"""Hyperband: several stopping ASHA that begin at different rungs (Li et al. 2016, arXiv 1603.06560). Pure.

A metric that says nothing early would make ASHA stop the wrong trials; a part of the trials is therefore
compared only later, and a few not at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from tuning.asha import Asha
from tuning.spec_parts import Mode
from tuning.trial import Trial
from tuning.verdicts import Decision, Promote

_GOLDEN = 0.6180339887498949
"""Multiples of it, modulo one, spread evenly however many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperband:
    """Trials of one bracket are compared among themselves only."""

    mode: Mode
    rungs: tuple[int, ...]
    reduction: int = 3

    def bracket_of(self, number: int) -> int:
        """How many rungs the trial of that number skips: even shares of the budget, so most trials skip none."""
        num_brackets = len(self.rungs) + 1
        sizes = [
            self.reduction ** (num_brackets - 1 - skipped) / (num_brackets - skipped) for skipped in range(num_brackets)
        ]
        place = (number + 0.5) * _GOLDEN % 1.0 * sum(sizes)
        return next((b for b, end in enumerate(itertools.accumulate(sizes)) if place < end), num_brackets - 1)

    def decide(self, trial: Trial, others: Iterable[Trial]) -> Decision:
        bracket = self.bracket_of(trial.number)
        own = Asha(mode=self.mode, rungs=self.rungs[bracket:], reduction=self.reduction, promotes=False)
        return own.decide(trial, [other for other in others if self.bracket_of(other.number) == bracket])

    def promote(self, trials: Iterable[Trial], *, can_start: bool) -> Promote | None:
        return None
