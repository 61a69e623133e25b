"""Asynchronous successive halving, by stopping or by promotion (Li et al. 2018, arXiv 1810.05934). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tuning.spec_parts import Mode
from tuning.trial import Trial, TrialState
from tuning.verdicts import Continue, Decision, Pause, Promote, Stop, not_finite, score


@dataclass(frozen=True, slots=True, kw_only=True)
class Asha:
    """About one trial in ``reduction`` passes each rung.

    Without ``promotes`` the rest is stopped for good: a trial passes if it is among the best so far, and the
    best always passes. With it the rest waits, and goes on when enough worse ones have come for it to be among
    the best: nobody is let on merely for coming early, and nobody is lost for it.
    """

    mode: Mode
    rungs: tuple[int, ...]
    reduction: int = 3
    promotes: bool = True

    def decide(self, trial: Trial, others: Iterable[Trial]) -> Decision:
        if stop := not_finite(trial):
            return stop
        before = trial.reports[-2].samples if len(trial.reports) > 1 else -1
        crossed = [rung for rung in self.rungs if before < rung <= trial.samples]
        if not crossed:
            return Continue(reason="between rungs")
        rung = crossed[-1]
        ranked = self._ranked(rung, [trial, *others])
        place, quota = ranked.index(trial) + 1, self._quota(len(ranked))
        told = f"{place} of {len(ranked)} so far at {rung:,} samples"
        if place <= quota:
            return Continue(reason=told)
        return Pause(rung=rung, reason=told) if self.promotes else Stop(reason=told)

    def promote(self, trials: Iterable[Trial], *, can_start: bool) -> Promote | None:
        if not self.promotes:
            return None
        known = list(trials)
        is_idle = not can_start and all(trial.state is not TrialState.RUNNING for trial in known)
        for rung in reversed(self.rungs):
            ranked = self._ranked(rung, known)
            passing = ranked[: self._quota(len(ranked))]
            if is_idle:
                # Who was pruned completes nothing: the next one goes on in its stead.
                passing += [trial for trial in ranked if trial.state is not TrialState.PRUNED][:1]
            for trial in passing:
                if self._is_held(trial, rung):
                    told = f"{ranked.index(trial) + 1} of {len(ranked)} so far at {rung:,} samples"
                    return Promote(number=trial.number, rung=rung, reason=told)
        return None

    def _is_held(self, trial: Trial, rung: int) -> bool:
        return trial.state is TrialState.WAITING and rung == max(r for r in self.rungs if r <= trial.samples)

    def _quota(self, num_here: int) -> int:
        passing = num_here // self.reduction
        return passing if self.promotes else max(1, passing)

    def _ranked(self, rung: int, trials: Iterable[Trial]) -> list[Trial]:
        """Who was at the rung, best first; the earlier trial goes before its equal.

        One that failed takes nobody's place: what it reported says nothing of what it would have become.
        """
        there = (trial for trial in trials if trial.samples >= rung and trial.state is not TrialState.FAILED)
        here = [(self._score(trial, rung), trial) for trial in there]
        return [trial for _, trial in sorted(here, key=lambda pair: (-pair[0], pair[1].number))]

    def _score(self, trial: Trial, rung: int) -> float:
        """What it was worth at the rung: its first report there, not what it became later."""
        return score(next(r.value for r in trial.reports if r.samples >= rung), self.mode)


def rungs_of(min_samples: int | None, reduction: int, total_samples: int) -> tuple[int, ...]:
    """Rungs below the end of a trial; where nothing is said the first is at its samples over ``reduction`` cubed."""
    rung = min_samples or max(1, total_samples // reduction**3)
    rungs = []
    while rung < total_samples:
        rungs.append(rung)
        rung *= reduction
    return tuple(rungs)
