"""What the store would hold of a sweep: trials report and end as they are told, and orders are carried out."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tuning.limits import Used
from tuning.orders import Advance, Exploit, Finish, Hold, Order, Places, Prune, Resume, Standing, Start
from tuning.parsing import parse_sweep_spec
from tuning.search import Search
from tuning.space import space_of
from tuning.spec import SweepSpec
from tuning.trial import Change, Report, Trial, TrialState

TOTAL = 1000
GLOBAL_BATCH = 10


def sweep_spec(**changes: object) -> SweepSpec:
    return parse_sweep_spec(
        {
            "name": "s",
            "job": job(samples=TOTAL),
            "space": {"optimizer.lr": {"log_uniform": [1e-5, 1.0]}},
            "metric": "eval.accuracy",
            "mode": "max",
            "sampler": "random",
            "pruner": "none",
            "trials": 6,
            "parallel": 2,
            **changes,
        }
    )


def job(**length: int) -> dict[str, object]:
    return {"entrypoint": "workers.recipes.digits:build", "batch": {"global_size": GLOBAL_BATCH}, **length}


def standing(num_trials: int = 6, samples_per_epoch: int | None = None) -> Standing:
    return Standing(num_trials=num_trials, samples_per_epoch=samples_per_epoch, used=Used(time_s=0.0, cost=None))


def worth(trial: Trial, samples: int) -> float:
    """The more, the nearer its rate is to 0.01, and the longer it trained."""
    return 1.0 - abs(float(str(trial.params["optimizer.lr"])) - 0.01) - 1.0 / samples


@dataclass
class Rows:
    """The rows of a sweep whose trials train on ``TOTAL`` samples.

    ``samples_per_epoch`` is known once a trial has reported. ``orders`` are all that were given. Only ``places`` trials
    train at once, None: all; ``placed`` are those that do, ``line`` all that were told to run, the last told last.
    """

    spec: SweepSpec
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    samples_per_epoch: int | None = None
    worth: Callable[[Trial, int], float] = worth
    trials: dict[int, Trial] = field(default_factory=dict)
    changed: dict[int, None] = field(default_factory=dict)
    lines: dict[int, int | None] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
    places: int | None = None
    placed: dict[int, None] = field(default_factory=dict)
    line: list[int] = field(default_factory=list)
    end: Finish | None = None

    def ask(self, search: Search, *, is_new: bool) -> None:
        numbers = self.trials if is_new else self.changed
        rows = [self.trials[number] for number in numbers]
        self.changed = {}
        for order in search.answer(rows, self._standing()).orders:
            self._carry_out(order)
            self.orders.append(order)
        assert len(self.running()) <= self.spec.parallel
        for number in self.running():
            assert self.end is not None or not self.stands(self.trials[number]), f"trial {number} waits for ever"

    def running(self) -> list[int]:
        return [number for number, trial in self.trials.items() if trial.state is TrialState.RUNNING]

    def place(self) -> list[int]:
        """Give what is free to those that wait for it; all that train then."""
        running = self.running()
        self.placed = {number: None for number in self.placed if number in running}
        waiting = self._line()
        free = len(waiting) if self.places is None else self.places - len(self.placed)
        self.placed |= dict.fromkeys(waiting[:free])
        return list(self.placed)

    def _line(self) -> list[int]:
        """Those that wait for a place, in the order in which they were told to run."""
        running = self.running()
        return [number for number in self.line if number in running and number not in self.placed]

    def stands(self, trial: Trial) -> bool:
        """Whether it waits at its line."""
        line = self.lines[trial.number]
        before = trial.reports[-2].samples if len(trial.reports) > 1 else 0
        return line is not None and before < line <= trial.samples

    def train(self, number: int, samples: int, *, fails: bool = False) -> None:
        trial = self.trials[number]
        line = self.lines[number] or TOTAL
        begun = trial.changes[-1].samples if trial.is_changing else trial.samples
        most = line if line > begun else TOTAL
        at = min(most, begun + samples)
        value = self.worth(trial, at)
        reports = [report for report in trial.reports if report.samples <= begun]
        trial = replace(trial, reports=(*reports, Report(samples=at, value=value)), is_changing=False)
        if fails:
            trial = replace(trial, state=TrialState.FAILED)
        elif at == TOTAL:
            trial = replace(trial, state=TrialState.COMPLETE, value=value)
        self._put(trial)

    def _standing(self) -> Standing:
        is_known = any(trial.reports for trial in self.trials.values())
        told = standing(self.spec.trials, self.samples_per_epoch if is_known else None)
        if self.places is None:
            return replace(told, places=Places(training=frozenset(self.running())))
        return replace(told, places=Places(training=frozenset(self.placed), lacking=tuple(self._line())))

    def _carry_out(self, order: Order) -> None:
        assert self.end is None
        match order:
            case Start(number=number, params=params, until=line):
                assert number == len(self.trials)
                self.lines[number] = line
                assert params not in [trial.params for trial in self.trials.values()]
                assert space_of(self.spec.space).contains(params)
                self._put(Trial(number=number, params=params, state=TrialState.RUNNING))
                self.line.append(number)
            case Hold(number=number):
                self._become(number, TrialState.RUNNING, TrialState.WAITING)
            case Advance(number=number, until=line):
                self.lines[number] = line
            case Resume(number=number, until=line):
                self.lines[number] = line
                self._become(number, TrialState.WAITING, TrialState.RUNNING)
                self.line = [*(other for other in self.line if other != number), number]
            case Prune(number=number):
                self._become(number, TrialState.RUNNING, TrialState.PRUNED)
            case Exploit():
                self._exploit(order)
            case Finish():
                self.end = order

    def _exploit(self, order: Exploit) -> None:
        """The trial has taken the donor's state over, and has not reported with it yet."""
        trial, donor = self.trials[order.number], self.trials[order.donor]
        assert trial.state is TrialState.RUNNING
        assert not trial.is_changing
        assert order.donor != order.number
        assert space_of(self.spec.space).contains(order.params)
        change = Change(
            samples=donor.samples,
            params=order.params,
            before=trial.params,
            donor=order.donor,
            given_up=trial.samples,
            reason=order.reason,
            time=0.0,
        )
        self._put(replace(trial, params=order.params, changes=(*trial.changes, change), is_changing=True))

    def _become(self, number: int, before: TrialState, after: TrialState) -> None:
        assert self.trials[number].state is before
        self._put(replace(self.trials[number], state=after))

    def _put(self, trial: Trial) -> None:
        self.trials[trial.number] = trial
        self.changed[trial.number] = None
