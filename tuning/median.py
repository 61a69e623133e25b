"""Stopping what is worse than the median (Golovin et al. 2017, Google Vizier, section 3.2.2). Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from tuning.spec_parts import Mode
from tuning.trial import Trial
from tuning.verdicts import Continue, Decision, Promote, Stop, not_finite, score


@dataclass(frozen=True, slots=True, kw_only=True)
class Median:
    """Compares the best report so far with what others had reached by then.

    Nothing is stopped before ``min_samples``, nor before ``min_trials`` others have come as far.
    """

    mode: Mode
    min_samples: int
    min_trials: int

    @property
    def rungs(self) -> tuple[int, ...]:
        return (self.min_samples,)

    def decide(self, trial: Trial, others: Iterable[Trial]) -> Decision:
        if stop := not_finite(trial):
            return stop
        if trial.samples < self.min_samples:
            return Continue(reason=f"before {self.min_samples:,} samples")
        values = [self._best(other, trial.samples) for other in others if other.samples >= trial.samples]
        if len(values) < self.min_trials:
            return Continue(reason=f"{len(values)} others have come as far; {self.min_trials} are needed to compare")
        own, middle = self._best(trial, trial.samples), statistics.median(values)
        sign = 1 if self.mode == "max" else -1
        told = f"{sign * own:.6g} against a median of {sign * middle:.6g} of {len(values)} at {trial.samples:,} samples"
        return Stop(reason=told) if own < middle else Continue(reason=told)

    def promote(self, trials: Iterable[Trial], *, can_start: bool) -> Promote | None:
        return None

    def _best(self, trial: Trial, samples: int) -> float:
        """The best it had by that many samples, at least its first report."""
        values = [score(r.value, self.mode) for r in trial.reports if r.samples <= samples]
        return max(values, default=score(trial.reports[0].value, self.mode))
