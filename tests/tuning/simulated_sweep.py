"""A sweep without jobs: trials report made-up curves, in an order that a seed decides, and a pruner rules them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tuning.trial import Report, Trial, TrialState
from tuning.verdicts import Continue, Decision, Pause, Promote, Pruner, Stop

Curve = Callable[[int], float]
"""Samples -> value."""


@dataclass
class SimulatedSweep:
    """``parallel`` trials at once, each reporting every ``interval`` samples up to ``total``.

    ``failing``: trial -> samples at which it fails, before it reports there.
    """

    pruner: Pruner
    curves: list[Curve]
    parallel: int = 3
    interval: int = 100
    total: int = 2_700
    seed: int = 0
    failing: Mapping[int, int] = field(default_factory=dict)
    trials: dict[int, Trial] = field(default_factory=dict)
    log: list[tuple[Trial, list[Trial], Decision]] = field(default_factory=list)
    promotions: list[Promote] = field(default_factory=list)

    def run(self) -> SimulatedSweep:
        chance = random.Random(self.seed)
        while self._fill():
            self._report(chance.choice(self._running()))
        return self

    def samples(self) -> int:
        """What the whole sweep trained on."""
        return sum(trial.samples for trial in self.trials.values())

    def complete(self) -> set[int]:
        return {n for n, trial in self.trials.items() if trial.state is TrialState.COMPLETE}

    def _running(self) -> list[int]:
        return [n for n, trial in self.trials.items() if trial.state is TrialState.RUNNING]

    def _fill(self) -> bool:
        while len(self._running()) < self.parallel:
            can_start = len(self.trials) < len(self.curves)
            if found := self.pruner.promote(self.trials.values(), can_start=can_start):
                self.promotions.append(found)
                self._set(found.number, TrialState.RUNNING)
            elif can_start:
                number = len(self.trials)
                self.trials[number] = Trial(number=number, params={}, state=TrialState.RUNNING)
            else:
                break
        return bool(self._running())

    def _report(self, number: int) -> None:
        trial = self.trials[number]
        samples = min(self.total, trial.samples + self.interval)
        if samples >= self.failing.get(number, self.total + 1):
            self._set(number, TrialState.FAILED)
            return
        trial = replace(trial, reports=(*trial.reports, Report(samples=samples, value=self.curves[number](samples))))
        self.trials[number] = trial
        others = [other for n, other in self.trials.items() if n != number]
        decision = self.pruner.decide(trial, others)
        self.log.append((trial, others, decision))
        match decision:
            case Stop():
                self._set(number, TrialState.PRUNED)
            case Pause():
                self._set(number, TrialState.WAITING)
            case Continue() if samples == self.total:
                self._set(number, TrialState.COMPLETE)
            case Continue():
                pass

    def _set(self, number: int, state: TrialState) -> None:
        self.trials[number] = replace(self.trials[number], state=state)
