"""One sweep's search: which trials to start, hold, let on and end, from what their rows say.

It holds nothing that the rows do not say but which reports it has judged, and to whom a place was promised: a search
that begins anew judges the last report of each running trial once more, and one with a population none:
``tuning.flock`` decides there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from tuning.alike import Alike, alike, stood
from tuning.importance import importance
from tuning.inheritance import Inherited, inherited, point_of, tried_by
from tuning.intervals import FIRST_LINE, Intervals
from tuning.limits import MAX_FAILURES, limit_reached
from tuning.orders import Advance, Answer, Beginning, Finish, Hold, Order, Prune, Resume, Standing, Start
from tuning.paths import applied, found
from tuning.pruning import NoPruner, pruner_of, spelled_out
from tuning.space import space_of
from tuning.spec import SweepSpec
from tuning.spec_parts import AshaSpec, HyperbandSpec, MedianSpec
from tuning.study import Study, StudySetting
from tuning.trial import ENDED, Trial, TrialState
from tuning.turns import NUM_PARTS, Turns
from tuning.unfinished import furthest_best
from tuning.values import Params
from tuning.verdicts import Pause, Pruner, Stop
from workers.spec import parse_job_spec

if TYPE_CHECKING:
    from tuning.flock import Flock

NEWS_SHARE = 0.25
"""Of the trials that are compared, before it is found out anew what mattered: trials wait meanwhile."""


def begun(beginning: Beginning) -> Search:
    """A search that knows no trial of its own yet, what earlier sweeps found in its space, and what is in use."""
    spec = SweepSpec.model_validate_json(beginning.spec_json)
    space = space_of(spec.space)
    openings = tuple(point for job in beginning.incumbents if (point := point_of(job, space)) is not None)
    handed_on = inherited(beginning.earlier, space, spec.mode) + tried_by(beginning.forebears, space)
    return Search(spec, handed_on, openings)


class Search:
    """Not for several threads: asks may take seconds."""

    def __init__(
        self, spec: SweepSpec, inherited: tuple[Inherited, ...] = (), openings: tuple[Params, ...] = ()
    ) -> None:
        self._spec = spec
        self._space = space_of(spec.space)
        self._study = Study(
            StudySetting(
                space=self._space,
                sampler=spec.sampler,
                mode=spec.mode,
                seed=spec.seed,
                inherited=inherited,
                openings=openings,
            )
        )
        self._trials: dict[int, Trial] = {}
        self._judged: dict[int, int] = {}
        self._ended: dict[int, None] = {}
        self._pruner: Pruner | None = None
        self._flock: Flock | None = None
        self._intervals: Intervals | None = None
        self._promised: Set[int] = frozenset()
        self._total_samples = math.inf
        self._weighed = Alike()
        self._weights: dict[str, float] = {}

    def answer(self, changed: Iterable[Trial], standing: Standing) -> Answer:
        """Take the rows that changed since the last call, and decide what follows; see ``Question``."""
        changed = list(changed)
        for trial in changed:
            self._record(trial)
        orders = self._first_lines(standing) if self._pruner is None else []
        self._flock = self._flock_with(changed)
        orders += self._verdicts(standing)
        for order in orders:
            self._expect(order)
        why = self._reason_to_end(standing)
        orders += [why] if why else self._filled(standing)
        is_over = any(isinstance(order, Finish) for order in orders)
        return Answer(orders=tuple(orders), importance=self._importance(is_over=is_over))

    def _first_lines(self, standing: Standing) -> list[Order]:
        """Once it is known where trials are compared: stop there, for those that began before."""
        self._pruner = self._pruner_for(standing.samples_per_epoch)
        line = self._line_beyond(0)
        before = [trial.number for trial in self._running() if line is not None and trial.samples < line]
        return [Advance(number=number, until=line) for number in before]

    def _line_beyond(self, samples: int) -> int | None:
        """The next rung after so many samples, where a trial is to wait for its verdict."""
        rungs = self._pruner.rungs if self._pruner is not None else ()
        return next((rung for rung in rungs if rung > samples), None)

    def _importance(self, *, is_over: bool) -> dict[str, float]:
        """As of now where that is new by ``NEWS_SHARE``, or the last there is to say."""
        if self._spec.population is not None:
            return {}  # what its trials were trained with changed on the way
        found = alike(self._trials.values(), self._pruner.rungs if self._pruner else ())
        num_new = abs(found.number - self._weighed.number)
        is_news = found.samples != self._weighed.samples or num_new >= max(1, NEWS_SHARE * found.number)
        if is_news or (is_over and num_new):
            self._weighed = found
            compared = [*stood(self._trials.values(), found.samples)] if found.number else []
            self._weights = importance(compared, self._space, self._spec.mode)
        return self._weights

    def _record(self, trial: Trial) -> None:
        is_new = trial.number not in self._trials
        self._trials[trial.number] = trial
        self._study.record(trial)
        if is_new and len(trial.reports) > 1:
            self._judged[trial.number] = trial.reports[-2].samples
        if trial.state in ENDED:
            self._ended.setdefault(trial.number)
        else:
            self._ended.pop(trial.number, None)

    def _running(self) -> list[Trial]:
        return [trial for trial in self._trials.values() if trial.state is TrialState.RUNNING]

    def _verdicts(self, standing: Standing) -> list[Order]:
        if self._flock is None or self._intervals is None:
            return [order for trial in self._running() if (order := self._judge(trial))]
        exploits = self._flock.judge(trial for trial in self._running() if trial.samples < self._total_samples)
        busy = {number for order in exploits for number in (order.number, order.donor)}
        self._promised &= set(standing.places.lacking)
        holds = self._turns(standing).yielded(busy=busy, promised=self._promised)
        self._promised |= holds.keys()
        held = {order.number for order in holds.values()}
        lines = self._intervals.moved(trial for trial in self._running() if trial.number not in held)
        return [*exploits, *holds.values(), *lines]

    def _turns(self, standing: Standing) -> Turns:
        trials = tuple(self._trials.values())
        return Turns(trials=trials, places=standing.places, interval=self._interval, total=self._total_samples)

    def _returned(self, standing: Standing) -> list[Order]:
        """Trials of a population whose turn it is again, as far as they do not hold each other up."""
        orders: list[Order] = []
        if self._intervals is None:
            return orders
        turns = self._turns(standing)
        while order := turns.returned():
            trial = self._trials[order.number]
            turns = turns.with_lacking(trial)
            orders.append(replace(order, until=self._intervals.line_of(trial)))
            self._expect(order)
        return orders

    def _judge(self, trial: Trial) -> Order | None:
        """The verdict on reports that have come since the last one: the first that is not to go on, else how far."""
        if self._pruner is None or trial.samples >= self._total_samples:
            return None  # there is nothing left to save
        others = [other for other in self._trials.values() if other.number != trial.number]
        before, passed = 0, None
        for num_reports, report in enumerate(trial.reports, start=1):
            line, before = self._line_beyond(before), report.samples
            if report.samples <= self._judged.get(trial.number, -1):
                continue
            self._judged[trial.number] = report.samples
            match self._pruner.decide(replace(trial, reports=trial.reports[:num_reports]), others):
                case Pause(rung=rung, reason=reason):
                    return Hold(number=trial.number, rung=rung, reason=reason)
                case Stop(reason=reason):
                    return Prune(number=trial.number, reason=reason)
            if line is not None and line <= report.samples:
                passed = Advance(number=trial.number, until=self._line_beyond(report.samples))
        return passed

    def _expect(self, order: Order) -> None:
        """Count with an order as carried out; the row says it soon, or says otherwise."""
        match order:
            case Hold(number=number):
                self._assume(number, TrialState.WAITING)
            case Prune(number=number):
                self._assume(number, TrialState.PRUNED)
            case Resume(number=number):
                self._assume(number, TrialState.RUNNING)
            case Start(number=number, params=params):
                self._record(Trial(number=number, params=params, state=TrialState.RUNNING))

    def _assume(self, number: int, state: TrialState) -> None:
        self._record(replace(self._trials[number], state=state))

    def _filled(self, standing: Standing) -> list[Order]:
        """Returns, promotions and new trials for what is free, or the end where nothing is left to do."""
        orders = self._returned(standing)
        while len(self._running()) < self._spec.parallel:
            order = self._next(standing)
            if order is None:
                break
            orders.append(order)
            self._expect(order)
        if not self._running():
            orders.append(self._end())
        return orders

    def _next(self, standing: Standing) -> Order | None:
        can_start = len(self._trials) < standing.num_trials and not self._is_doubtful()
        if promotion := self._promotion(can_start=can_start):
            return promotion
        if not (can_start and self._knows_rungs()):
            return None
        point = self._study.ask()
        if point is None:
            return self._promotion(can_start=False)
        first = self._line_beyond(0) or self._given_rung()
        line = first
        if self._spec.population is not None:
            line = FIRST_LINE if self._pruner is None else None
        return Start(number=self._study.number, params=point, first_rung=first, until=line)

    def _is_doubtful(self) -> bool:
        """Whether so many failed that those which still run are to show first that another would not."""
        others = [trial for trial in self._trials.values() if trial.state is not TrialState.FAILED]
        is_shown = any(trial.reports or trial.state in ENDED for trial in others)
        return len(self._trials) - len(others) >= MAX_FAILURES and not is_shown

    def _promotion(self, *, can_start: bool) -> Resume | None:
        found = self._pruner.promote(self._trials.values(), can_start=can_start) if self._pruner else None
        if found is None:
            return None
        line = self._line_beyond(self._trials[found.number].samples)
        return Resume(number=found.number, reason=found.reason, until=line)

    def _knows_rungs(self) -> bool:
        """Where the first rung hangs on the size of the data, one trial at a time finds it out."""
        return self._pruner is not None or self._given_rung() is not None or not self._running()

    def _given_rung(self) -> int | None:
        if self._spec.population is not None:
            return None if math.isinf(self._total_samples) else self._interval
        match spelled_out(self._spec.pruner):
            case AshaSpec(min_samples=first) | HyperbandSpec(min_samples=first) | MedianSpec(min_samples=first):
                return first
        return None

    def _reason_to_end(self, standing: Standing) -> Finish | None:
        states = {trial.state for trial in self._trials.values()}
        if states == {TrialState.FAILED} and len(self._trials) >= min(MAX_FAILURES, standing.num_trials):
            return Finish(has_succeeded=False, reason=f"all {len(self._trials)} trials failed; see the reason of each")
        ended = [self._trials[number] for number in self._ended]
        reached = limit_reached(self._spec.limits, ended, self._spec.mode, standing.used)
        return self._cut_short(reached) if reached else None

    def _cut_short(self, limit: str) -> Finish:
        """A limit is no failure of what was searched: it found what its trials were worth so far."""
        trials = self._trials.values()
        if any(trial.state is TrialState.COMPLETE for trial in trials):
            return Finish(has_succeeded=True, reason=limit)
        best = furthest_best(trials, self._pruner.rungs if self._pruner else (), self._spec.mode)
        if best is None:
            return Finish(has_succeeded=False, reason=limit)
        told = f"no trial is complete, the best was trial {best.number} after {best.samples:,} samples"
        return Finish(has_succeeded=True, reason=f"{limit}; {told}")

    def _end(self) -> Finish:
        num_complete = sum(trial.state is TrialState.COMPLETE for trial in self._trials.values())
        told = f"{num_complete} of {len(self._trials)} trials are complete"
        return Finish(has_succeeded=num_complete > 0, reason=told)

    def _pruner_for(self, samples_per_epoch: int | None) -> Pruner | None:
        """None while it is not known on how many samples trials train."""
        if spelled_out(self._spec.pruner) is None and self._spec.population is None:
            return NoPruner()
        for corner in self._space.corners():
            job = applied(self._spec.job, corner)
            if found(job, "epochs")[1] is not None and samples_per_epoch is None:
                return None
            parsed = parse_job_spec({**job, "name": "trial"})
            self._total_samples = min(self._total_samples, parsed.total_samples(samples_per_epoch or 1))
        return pruner_of(self._spec.pruner, self._spec.mode, int(self._total_samples))

    def _flock_with(self, changed: list[Trial]) -> Flock | None:
        """The population, where the spec has one, told of what changed; None before it is known when to judge."""
        kind = self._spec.population
        if kind is None or self._pruner is None:
            return None
        if self._flock is not None:
            for trial in changed:
                self._flock.learn(trial)
            return self._flock
        # Here and not above: it loads Ray Tune, for which most sweeps have no use.
        from tuning.flock import Flock
        from tuning.population import PopulationSetting

        setting = PopulationSetting(
            kind=kind, space=self._space, mode=self._spec.mode, seed=self._spec.seed, interval=self._interval
        )
        self._intervals = Intervals(self._spec, list(self._trials.values()), self._interval, int(self._total_samples))
        return Flock(setting, self._trials.values())

    @property
    def _interval(self) -> int:
        """How far a trial of a population trains before it may be changed again, in samples."""
        return max(1, int(self._total_samples) // NUM_PARTS)
