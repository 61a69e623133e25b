"""A sweep's population as its rows tell it: what they say is learned, what the population decides becomes an order."""

from __future__ import annotations

from collections.abc import Iterable

from tuning.orders import Exploit
from tuning.population import Changed, Event, Joined, Left, Population, PopulationSetting, Reported
from tuning.population import Exploit as Decided
from tuning.trial import ENDED, Trial, TrialState
from tuning.verdicts import score


class Flock:
    """Rows are the truth: of a decision that was not carried out they say so, and it is taken back here.

    One that begins anew learns from all reports of its trials, and decides nothing by them.
    """

    def __init__(self, setting: PopulationSetting, trials: Iterable[Trial]) -> None:
        self._population, self._mode = Population(setting), setting.mode
        self._upto: dict[int, int] = {}
        self._num_changes: dict[int, int] = {}
        self._living: set[int] = set()
        for event in _history(trials):
            self._population.tell(event)
        for trial in trials:
            # Of a change that is under way the first report is yet to come.
            self._upto[trial.number] = trial.samples
            self._num_changes[trial.number] = len(trial.changes) - trial.is_changing
            if trial.state not in ENDED:
                self._living.add(trial.number)

    def learn(self, trial: Trial) -> None:
        """Take a row as it is now, but for its reports."""
        number = trial.number
        if trial.state in ENDED:
            if number in self._living:
                self._living.discard(number)
                self._population.tell(Left(number=number))
            return
        if number not in self._living:
            self._living.add(number)
            self._population.tell(Joined(number=number, params=trial.params))
            self._upto.setdefault(number, 0)
        if trial.is_changing:
            return
        if self._population.params(number) != dict(trial.params):
            self._population.tell(Changed(number=number, params=trial.params))
        if trial.changes and len(trial.changes) > self._num_changes.get(number, 0):
            self._num_changes[number] = len(trial.changes)
            self._upto[number] = trial.changes[-1].samples

    def judge(self, trials: Iterable[Trial]) -> list[Exploit]:
        """What follows from the reports that have come since the last ones.

        Of reports at the same samples the better ones are told first: the schedulers weigh a trial against what they
        have heard of the others by then.
        """
        fresh = [
            (report.samples, -score(report.value, self._mode), trial.number, report.value)
            for trial in trials
            if trial.state is TrialState.RUNNING and not trial.is_changing
            for report in trial.reports
            if report.samples > self._upto.get(trial.number, -1)
        ]
        orders: dict[int, Exploit] = {}
        for samples, _, number, value in sorted(fresh):
            self._upto[number] = samples
            if number in orders:
                continue
            told = self._population.tell(Reported(number=number, samples=samples, value=value))
            if isinstance(told, Decided):
                orders[number] = Exploit(number=number, donor=told.donor, params=told.params, reason=told.reason)
        return list(orders.values())


def _history(trials: Iterable[Trial]) -> list[Event]:
    """What happened to all of them, as far as their rows still tell it: reports in the order of their samples."""
    joined: list[Event] = [Joined(number=trial.number, params=trial.first_params) for trial in trials]
    told: list[tuple[int, int, Event]] = []
    for trial in trials:
        for report in trial.reports:
            # A population that learns may decide, too; what was decided then is what the rows say.
            kept = Changed(number=trial.number, params=trial.params_at(report.samples))
            event = Reported(number=trial.number, samples=report.samples, value=report.value)
            told += [(report.samples, trial.number, kept), (report.samples, trial.number, event)]
    last: list[Event] = [Changed(number=trial.number, params=trial.params) for trial in trials]
    left: list[Event] = [Left(number=trial.number) for trial in trials if trial.state in ENDED]
    return [*joined, *(event for _, _, event in sorted(told, key=lambda entry: entry[:2])), *last, *left]
