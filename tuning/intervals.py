"""Lines for trials of a population that began before anybody knew on how many samples they train. Pure.

A trial that begins later evaluates once an interval by its job's spec. In the spec of one that began before is the
user's interval, which may be longer than the whole trial. So such a trial stands at a line at the end of each interval,
where it is evaluated, and goes on at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tuning.lengths import total_range
from tuning.orders import Advance
from tuning.spec import SweepSpec, trial_spec
from tuning.trial import Trial, TrialState

FIRST_LINE = 1
"""After its first step: by then it has told the size of its data, and has not missed a line yet."""


class Intervals:
    """Of one population, once ``interval`` and ``total`` (in samples) are known; ``trials`` are all that have begun."""

    def __init__(self, spec: SweepSpec, trials: Sequence[Trial], interval: int, total: int) -> None:
        self._interval, self._total = interval, total
        early = [] if total_range(spec, None) else _begun_before(trials)
        self._is_sparse = {trial.number: _is_sparse(spec, trial, interval) for trial in early}
        self._told: dict[int, int | None] = {}

    def line_of(self, trial: Trial) -> int | None:
        """Where the trial is to stand next, None where nowhere; its search is told."""
        line = self._line_beyond(trial) if self._is_sparse.get(trial.number) else None
        self._told[trial.number] = line
        return line

    def moved(self, trials: Iterable[Trial]) -> list[Advance]:
        """Lines that are to lie elsewhere, of these trials, which run."""
        early = [trial for trial in trials if trial.number in self._is_sparse]
        before = {trial.number: self._told.get(trial.number, FIRST_LINE) for trial in early}
        now = {trial.number: self.line_of(trial) for trial in early}
        return [Advance(number=number, until=line) for number, line in now.items() if line != before[number]]

    def _line_beyond(self, trial: Trial) -> int | None:
        """An interval on from its last report, or from the state that it has taken over since."""
        at = max(trial.samples, trial.changes[-1].samples if trial.changes else 0)
        return at + self._interval if at + self._interval < self._total else None


def _begun_before(trials: Sequence[Trial]) -> list[Trial]:
    """One at a time began, until the first that came far enough to tell."""
    early: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: trial.number):
        early.append(trial)
        if trial.reports or trial.state is not TrialState.FAILED:
            break
    return early


def _is_sparse(spec: SweepSpec, trial: Trial, interval: int) -> bool:
    """Whether its job evaluates less often than is needed here."""
    own, wanted = (trial_spec(spec, trial.number, trial.first_params, rung) for rung in (None, interval))
    return own.eval_every_steps > wanted.eval_every_steps
