"""Taking turns: where a population has more trials than places, those ahead let those behind train. Pure.

Only trials that have trained about as long tell which is the worse. Ray Tune's PBT yields likewise
(``ray.tune.schedulers.pbt``, ``on_trial_result``: a trial pauses at its interval while others wait for resources).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace

from tuning.orders import Hold, Places, Resume
from tuning.trial import Trial, TrialState

NUM_PARTS = 10
"""A trial of a population may be changed so many times at most: each must have time to show what it is worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Of trials as they are now, and the places that they have.

    ``interval`` and ``total`` are in samples: so much further than one that lacks a place a trial may be, and how long
    it trains in all.
    """

    trials: Sequence[Trial]
    places: Places
    interval: int
    total: float

    def yielded(self, *, busy: Iterable[int], promised: Iterable[int]) -> dict[int, Hold]:
        """Who is to give its place up, by the number of the trial that has it next: the furthest ahead first.

        None of the ``busy``, and for none of the ``promised``, which another has given its place up for already. A
        place goes to the head of the line, which need not be the trial that is far enough behind.
        """
        able = [
            trial
            for trial in self._in_state(TrialState.RUNNING, self.places.training)
            if trial.number not in busy and not trial.is_changing and trial.samples < self.total
        ]
        lacking = [trial for trial in self._lacking() if trial.number not in promised]
        return {
            following.number: Hold(
                number=ahead.number,
                rung=ahead.samples,
                reason=f"lets trial {following.number} have its place, which is at {following.samples:,} samples",
            )
            for place, (ahead, following) in enumerate(zip(reversed(able), lacking, strict=False))
            if any(self._is_ahead(ahead, other) for other in lacking[place:])
        }

    def returned(self) -> Resume | None:
        """The one that waits and is the furthest behind, once it holds up nobody who is behind it."""
        lacking = self._lacking()
        for trial in self._in_state(TrialState.WAITING):
            if not any(self._is_ahead(trial, other) for other in lacking):
                return Resume(number=trial.number, reason="")
        return None

    def with_lacking(self, trial: Trial) -> Turns:
        """After this one was told to train on: it lacks a place until it has one."""
        others = [other for other in self.trials if other.number != trial.number]
        places = replace(self.places, lacking=(*self.places.lacking, trial.number))
        return replace(self, trials=(*others, replace(trial, state=TrialState.RUNNING)), places=places)

    def _is_ahead(self, trial: Trial, other: Trial) -> bool:
        return trial.samples >= other.samples + self.interval

    def _lacking(self) -> list[Trial]:
        """In the order of the line."""
        running = {trial.number: trial for trial in self.trials if trial.state is TrialState.RUNNING}
        return [running[number] for number in self.places.lacking if number in running]

    def _in_state(self, state: TrialState, among: Set[int] | None = None) -> list[Trial]:
        """The furthest behind first."""
        found = [t for t in self.trials if t.state is state and (among is None or t.number in among)]
        return sorted(found, key=lambda trial: (trial.samples, trial.number))
