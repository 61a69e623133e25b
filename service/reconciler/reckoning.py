"""What a sweep's search knows of its trials, and counts on: what only bears that out need not be asked about. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from tuning.orders import Answer, Exploit, Hold, Order, Prune, Question, Resume, Start
from tuning.trial import Trial, TrialState

_Counts: TypeAlias = tuple[int, int | None]
_COMES_TO = {Hold: TrialState.WAITING, Prune: TrialState.PRUNED, Resume: TrialState.RUNNING}


class Reckoning:
    """Of one search, from its beginning on.

    Most rows that change tell of an order that is carried out, or of a job that starts or has been saved.
    """

    def __init__(self) -> None:
        self._trials: dict[int, Trial] = {}
        self._counts: _Counts | None = None

    def is_news(self, question: Question) -> bool:
        """Whether the question may have another answer than that there is nothing to do."""
        is_begun = question.beginning is None and _counts(question) == self._counts
        return not is_begun or any(_known(trial) != self._trials.get(trial.number) for trial in question.trials)

    def asked(self, question: Question, answer: Answer) -> None:
        """The question was answered, and the answer is about to be written down."""
        self._counts = _counts(question)
        for trial in question.trials:
            self._trials[trial.number] = _known(trial)
        for order in answer.orders:
            self._expect(order)

    def _expect(self, order: Order) -> None:
        match order:
            case Start(number=number, params=params):
                self._trials[number] = Trial(number=number, params=params, state=TrialState.RUNNING)
            case Hold(number=number) | Prune(number=number) | Resume(number=number):
                if (trial := self._trials.get(number)) is not None:
                    self._trials[number] = replace(trial, state=_COMES_TO[type(order)])
            case Exploit(number=number):
                self._trials.pop(number, None)  # a population hears what becomes of it


def _known(trial: Trial) -> Trial:
    """Without what no search goes by: how long it has taken so far, and which job it is."""
    return replace(trial, seconds=0.0, job_id="")


def _counts(question: Question) -> _Counts:
    return question.standing.num_trials, question.standing.samples_per_epoch
