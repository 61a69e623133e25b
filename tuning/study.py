"""Which point to try next: Optuna's samplers over what the rows say.

Rows are the truth. Each ask makes a study of them in memory and throws it away, so nothing that Optuna
holds can be lost, or left RUNNING for ever; and what is asked is a function of the rows and the seed.
"""

from __future__ import annotations

import math
import random
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import optuna
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, RandomSampler, TPESampler

from tuning.distributions import Choice, Distribution, Uniform, Whole, drawn
from tuning.inheritance import Inherited
from tuning.optuna_trials import optuna_trial, study_with
from tuning.seeds import seed_of
from tuning.space import MAX_GRID_POINTS, Space
from tuning.spec_parts import Mode, SamplerName
from tuning.trial import Trial, TrialState
from tuning.values import Params, PointKey, Scalar, key_of

MAX_GP_TRIALS = 100
MAX_GP_ASK_S = 2.0
"""The Gaussian process gives way to TPE past so many finished trials, or once an ask took so long."""

_TRIES = 5
"""How often a sampler that repeats itself is asked again before its place is taken by chance."""

_DRAWS = 1_000

_LEAST_SOURCES = 10
"""CMA-ES learns where to begin from a tenth of what is already known: below this, from nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySetting:
    """What does not change while a sweep runs.

    ``openings`` are points to try before anything is sampled (the incumbent's, say); those outside the space
    are left out. ``inherited`` is what earlier sweeps over the same metric hand on, the latest one first.
    """

    space: Space
    sampler: SamplerName
    mode: Mode
    seed: int
    openings: tuple[Params, ...] = ()
    inherited: tuple[Inherited, ...] = ()


class Study:
    """One sweep's study. One thread only: samplers are not safe for two, and an ask may take seconds.

    ``clock`` gives seconds; it decides only whether the Gaussian process has become too slow.
    """

    def __init__(
        self, setting: StudySetting, trials: Iterable[Trial] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._setting = setting
        self._clock = clock
        self._trials: dict[int, Trial] = {}
        self._noted: dict[int, Mapping[str, object]] = {}
        found = [(each.source, result) for each in setting.inherited for result in each.results]
        self._inherited = [
            optuna_trial(result.as_trial(number), setting.space, source=source)
            for number, (source, result) in enumerate(found)
        ]
        self._tried = [{key_of(params) for params in each.tried} for each in setting.inherited]
        sources = [each.source for each in setting.inherited if each.is_named]
        # Else each night would draw the points of the night before again, until there are results to learn from.
        self._seed = seed_of(setting.seed, *sources) if sources else setting.seed
        self._shown: dict[int, optuna.trial.FrozenTrial] = {}
        self._is_gp_slow = False
        for trial in trials:
            self.record(trial)

    def record(self, trial: Trial) -> None:
        """Take a row as it is now; the caller does so for each trial that it starts, and each that changes."""
        self._trials[trial.number] = trial
        self._shown[trial.number] = optuna_trial(trial, self._setting.space, self._noted.get(trial.number))

    def ask(self) -> dict[str, Scalar] | None:
        """The point of the next trial, unlike any recorded; None once there is none left.

        Until the new trial is recorded the answer stays the same. What an earlier sweep has tried comes only as
        an opening, or where nothing else is left, that of the earliest first.
        """
        taken = {key_of(trial.params) for trial in self._trials.values()}
        for opening in self._setting.openings:
            if self._setting.space.contains(opening) and key_of(opening) not in taken:
                return dict(opening)
        count = self._setting.space.count()
        is_small = count is not None and count <= MAX_GRID_POINTS
        if is_small and len(taken) >= (count or 0):
            return None
        avoided = self._avoided(taken, math.inf if count is None else count)
        if self._setting.sampler == "grid":
            return self._left_over(avoided)
        for attempt in range(_TRIES):
            point = self._sampled(attempt)
            if key_of(point) not in avoided:
                return point
        return self._left_over(avoided) if is_small else self._by_chance(avoided) or self._by_chance(taken)

    @property
    def number(self) -> int:
        """Of the trial that ``ask`` chooses for."""
        return max(self._trials, default=-1) + 1

    def _sampled(self, attempt: int) -> dict[str, Scalar]:
        seed = seed_of(self._seed, self.number, attempt)
        is_gp, began_s = self._is_gp(), self._clock()
        with warnings.catch_warnings():
            # That `group`, `source_trials` and the like may change is pinned by Optuna's version range.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study = study_with(self._known(), self._setting.mode, self._sampler(seed, is_gp))
            trial = study.ask()
            point = self._setting.space.point(lambda path, distribution: _suggested(trial, path, distribution))
        self._is_gp_slow |= is_gp and self._clock() - began_s > MAX_GP_ASK_S
        self._noted[self.number] = _noted(study)
        return point

    def _known(self) -> list[optuna.trial.FrozenTrial]:
        return self._inherited + [shown for _, shown in sorted(self._shown.items())]

    def _is_gp(self) -> bool:
        finished = sum(trial.state is TrialState.COMPLETE for trial in self._trials.values())
        is_few = finished + len(self._inherited) <= MAX_GP_TRIALS
        return self._setting.sampler == "gp" and is_few and not self._is_gp_slow

    def _sampler(self, seed: int, is_gp: bool) -> BaseSampler:
        if is_gp:
            return GPSampler(seed=seed, warn_independent_sampling=False)
        match self._setting.sampler:
            case "random":
                return RandomSampler(seed=seed)
            case "cmaes":
                # Its state is noted on trials of this process only; after a restart it begins from results.
                fresh = [t for t in self._known() if t.value is not None and not t.system_attrs]
                sources = fresh if len(fresh) >= _LEAST_SOURCES else None
                return CmaEsSampler(
                    seed=seed, source_trials=sources, consider_pruned_trials=True, warn_independent_sampling=False
                )
            case _:
                return TPESampler(seed=seed, group=self._setting.space.is_conditional())

    def _avoided(self, taken: set[PointKey], count: float) -> set[PointKey]:
        """What is taken, and what earlier sweeps tried, as far back as that leaves some of so many points."""
        avoided = taken
        for tried in self._tried:
            if len(avoided | tried) >= count:
                break
            avoided = avoided | tried
        return avoided

    def _left_over(self, avoided: set[PointKey]) -> dict[str, Scalar] | None:
        """One of the points of a small space that are not avoided."""
        return next((point for point in self._in_turn if key_of(point) not in avoided), None)

    @cached_property
    def _in_turn(self) -> list[dict[str, Scalar]]:
        """All points of a small space, in an order that the spec's seed decides, from where the last sweep stopped.

        A schedule's sweep knows the last ones and none before them: going round and round in one order, nights that
        each try a part of a grid try all of it.
        """
        points = list(self._setting.space.grid())
        random.Random(self._setting.seed).shuffle(points)
        last = next((key_of(each.tried[-1]) for each in self._setting.inherited if each.tried), None)
        begin = next((index + 1 for index, point in enumerate(points) if key_of(point) == last), 0)
        return points[begin:] + points[:begin]

    def _by_chance(self, avoided: set[PointKey]) -> dict[str, Scalar] | None:
        """A free point of a large space; None where chance finds none, as between two numbers that nearly touch."""
        chance = random.Random(seed_of(self._seed, self.number, _TRIES))
        for _ in range(_DRAWS):
            point = self._setting.space.point(lambda _, distribution: drawn(distribution, chance))
            if key_of(point) not in avoided:
                return point
        return None


def _noted(study: optuna.Study) -> dict[str, object]:
    """What CMA-ES wrote on the trial that was asked last: its state, which the next asks go on from."""
    attributes = study.get_trials(deepcopy=False)[-1].system_attrs
    return {key: value for key, value in attributes.items() if key.startswith("cma:")}


def _suggested(trial: optuna.Trial, path: str, distribution: Distribution) -> Scalar:
    match distribution:
        case Uniform(low=low, high=high, step=step, is_log=is_log):
            return distribution.snapped(float(trial.suggest_float(path, low, high, step=step, log=is_log)))
        case Whole(low=low, high=high, step=step, is_log=is_log):
            return int(trial.suggest_int(path, low, high, step=step, log=is_log))
        case Choice(options=options):
            return trial.suggest_categorical(path, options)
