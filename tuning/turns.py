"""Taking turns: where a population has more trials than places, those ahead let those behind train. Pure.

Only trials that have trained about as long tell which is the worse. Ray Tune's PBT yields likewise
(``ray.tune.schedulers.pbt``, ``on_trial_result``: a trial pauses at its interval while others wait for resources).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from tuning.orders import Hold, Resume
from tuning.trial import Trial, TrialState

NUM_PARTS = 10
"""A trial of a population may be changed so many times at most: each must have time to show what it is worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Of trials as they are now; ``queued`` names those that wait for a place.

    ``interval`` and ``total`` are in samples: so much further than one that waits a trial may be, and how long it
    trains in all.
    """

    trials: Sequence[Trial]
    queued: Set[int]
    interval: int
    total: float

    def yielded(self, busy: Iterable[int] = ()) -> list[Hold]:
        """Those that are to give their places up, the furthest ahead first, but for the ``busy``.

        No more than there are trials without a place.
        """
        able = [
            trial
            for trial in self._in_state(TrialState.RUNNING)
            if trial.number not in self.queued and trial.number not in busy
            if not trial.is_changing and trial.samples < self.total
        ]
        pairs = zip(reversed(able), self._lacking(), strict=False)
        return [
            Hold(
                number=ahead.number,
                rung=ahead.samples,
                reason=f"lets trial {behind.number} have its place, which is at {behind.samples:,} samples",
            )
            for ahead, behind in pairs
            if self._is_ahead(ahead, behind)
        ]

    def returned(self) -> Resume | None:
        """The one that waits and is the furthest behind, once it holds up nobody who is behind it."""
        lacking = self._lacking()
        for trial in self._in_state(TrialState.WAITING):
            if not any(self._is_ahead(trial, other) for other in lacking):
                return Resume(number=trial.number, reason="nobody waits who is behind it")
        return None

    def _is_ahead(self, trial: Trial, other: Trial) -> bool:
        return trial.samples >= other.samples + self.interval

    def _lacking(self) -> list[Trial]:
        return [trial for trial in self._in_state(TrialState.RUNNING) if trial.number in self.queued]

    def _in_state(self, state: TrialState) -> list[Trial]:
        """The furthest behind first."""
        found = [trial for trial in self.trials if trial.state is state]
        return sorted(found, key=lambda trial: (trial.samples, trial.number))
