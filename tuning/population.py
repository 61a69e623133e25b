"""Populations: Ray Tune's PBT and PB2 change learning rate and batch size of running trials.

Only Tune's schedulers are used, without its executor: they see stand-ins for its trials and controller, and
what they would have done comes back as a decision. This leans on private names of Ray, so
``tests/tuning/test_population.py`` holds it to them, and Ray's version is pinned.
"""

from __future__ import annotations

import logging
import math
import random
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import numpy as np
from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.schedulers.pb2 import PB2

from tuning.distributions import Choice, Distribution, Uniform, Whole, drawn
from tuning.seeds import seed_of
from tuning.space import Space
from tuning.spec_parts import Mode, PopulationName
from tuning.values import Params, Scalar
from tuning.verdicts import score

_SAMPLES, _SCORE = "samples", "score"


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationSetting:
    """``interval`` is in samples: how far a trial trains before it may be changed again."""

    kind: PopulationName
    space: Space
    mode: Mode
    seed: int
    interval: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A trial has started with these parameters."""

    number: int
    params: Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A trial has a new value of the metric. After an exploit ``samples`` go on from those of the snapshot."""

    number: int
    samples: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A trial has ended, however it did."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A trial trains with these parameters now, whatever was decided of it."""

    number: int
    params: Params


Event: TypeAlias = Joined | Reported | Left | Changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Train on as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Train on, and keep a snapshot of the state as it is now: others may go on from it.

    It takes the place of the trial's earlier one, which may be dropped once nobody is loading it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploit:
    """Load the snapshot that trial ``donor`` saved at ``samples``, and train on from there with these parameters."""

    donor: int
    samples: int
    params: Params
    reason: str


PopulationDecision: TypeAlias = Keep | Save | Exploit


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    """What the schedulers take for a checkpoint."""

    number: int
    samples: int


@dataclass(eq=False, slots=True)
class _TuneTrial:
    """Stands in for Tune's trial: all that its schedulers read and write."""

    trial_id: str
    config: dict[str, Any]
    number: int
    samples: int = 0
    status: str = "RUNNING"
    experiment_tag: str = ""
    is_saving: bool = False
    checkpoint: Any = None
    evaluated_params: dict[str, Any] = field(default_factory=dict)
    last_result: dict[str, Any] = field(default_factory=dict)
    temporary_state: Any = field(default_factory=lambda: SimpleNamespace(saving_to=None))
    run_metadata: Any = field(
        default_factory=lambda: SimpleNamespace(
            checkpoint_manager=SimpleNamespace(
                checkpoint_config=SimpleNamespace(num_to_keep=None), _latest_checkpoint_result=None
            )
        )
    )

    def __repr__(self) -> str:
        """PB2 keys its table by this."""
        return self.trial_id

    def is_finished(self) -> bool:
        return self.status == "TERMINATED"

    def set_config(self, config: dict[str, Any]) -> None:
        self.config = config

    def set_experiment_tag(self, tag: str) -> None:
        self.experiment_tag = tag


@dataclass(slots=True)
class _TuneController:
    """Stands in for Tune's controller: notes what the scheduler asks it to do."""

    trials: dict[int, _TuneTrial] = field(default_factory=dict)
    saved: bool = False
    search_alg: None = None

    def get_trials(self) -> list[_TuneTrial]:
        return list(self.trials.values())

    def get_live_trials(self) -> list[_TuneTrial]:
        return [trial for trial in self.trials.values() if not trial.is_finished()]

    def _schedule_trial_save(self, trial: _TuneTrial, result: object = None) -> _Snapshot:
        self.saved = True
        return _Snapshot(number=trial.number, samples=trial.samples)

    def pause_trial(self, trial: _TuneTrial, should_checkpoint: bool = True) -> None:
        trial.status = "PAUSED"


class Population:
    """One sweep's population. What it decides is a function of the setting and the events so far, in their order.

    So it is rebuilt after a restart by telling it the events again; with PB2 that takes a fraction of a second
    for each exploit. One thread only, and none beside it that uses Python's or numpy's global random numbers.
    """

    def __init__(self, setting: PopulationSetting, events: Iterable[Event] = ()) -> None:
        self._setting = setting
        self._searched = {p.path: p.distribution for p in setting.space.parameters}
        self._controller = _TuneController()
        self._scores: list[float] = []
        self._num_events = 0
        self._scheduler = self._new_scheduler()
        logging.getLogger("ray.tune.schedulers.pbt").setLevel(logging.WARNING)  # our decisions tell as much
        for event in events:
            self.tell(event)

    def tell(self, event: Event) -> PopulationDecision:
        """Take what happened; a decision other than Keep follows only a report."""
        self._num_events += 1
        with _seeded(seed_of(self._setting.seed, self._num_events)):
            match event:
                case Joined():
                    self._join(event)
                case Left():
                    self._controller.trials[event.number].status = "TERMINATED"
                case Changed():
                    self._controller.trials[event.number].config = self._config(event.params)
                case Reported():
                    return self._report(event)
        return Keep()

    def params(self, number: int) -> dict[str, Scalar]:
        """What a trial trains with now."""
        config = self._controller.trials[number].config
        return {path: self._decoded(path, config[path]) for path in self._searched}

    def _join(self, event: Joined) -> None:
        trial = _TuneTrial(trial_id=f"trial-{event.number}", config=self._config(event.params), number=event.number)
        self._controller.trials[event.number] = trial
        self._scheduler.on_trial_add(cast(Any, self._controller), cast(Any, trial))

    def _config(self, params: Params) -> dict[str, Any]:
        return {path: self._encoded(path, params[path]) for path in self._searched}

    def _report(self, event: Reported) -> PopulationDecision:
        trial = self._controller.trials[event.number]
        trial.samples, self._controller.saved = event.samples, False
        result = {_SAMPLES: event.samples, _SCORE: self._score(event.value)}
        self._scheduler.on_trial_result(cast(Any, self._controller), cast(Any, trial), result)
        trial.last_result = result
        manager = trial.run_metadata.checkpoint_manager
        if trial.status != "PAUSED":
            return Save() if self._controller.saved else Keep()
        snapshot: _Snapshot = manager._latest_checkpoint_result.checkpoint
        manager._latest_checkpoint_result, trial.status = None, "RUNNING"
        told = (
            f"among the worst with {event.value:.6g} at {event.samples:,} samples; goes on from trial {snapshot.number}"
        )
        return Exploit(donor=snapshot.number, samples=snapshot.samples, params=self.params(event.number), reason=told)

    def _score(self, value: float) -> float:
        """More is better. The schedulers pass over what is no number, and so would never replace a diverged trial."""
        own = score(value, self._setting.mode)
        if math.isfinite(own):
            self._scores.append(own)
            return own
        worst, best = (min(self._scores), max(self._scores)) if self._scores else (0.0, 0.0)
        return worst - (best - worst or 1.0)

    def _new_scheduler(self) -> PopulationBasedTraining:
        shared: dict[str, Any] = {
            "time_attr": _SAMPLES,
            "metric": _SCORE,
            "mode": "max",
            "perturbation_interval": self._setting.interval,
            "custom_explore_fn": self._within,
            "log_config": False,  # it would write files
        }
        if self._setting.kind == "pb2":
            bounds = {path: self._bounds(path, of) for path, of in self._searched.items()}
            return PB2(hyperparam_bounds=cast(Any, bounds), **shared)
        return PopulationBasedTraining(
            hyperparam_mutations={p: _mutation(d) for p, d in self._searched.items()}, **shared
        )

    def _within(self, config: dict[str, Any]) -> dict[str, Any]:
        """A mutated value may lie outside its range, or between two steps."""
        return {path: self._encoded(path, self._decoded(path, value)) for path, value in config.items()}

    def _encoded(self, path: str, value: Scalar) -> Any:
        """PB2 searches plain numbers on a linear scale; PBT multiplies, and takes values as they are."""
        distribution = self._searched[path]
        if self._setting.kind == "pbt" or isinstance(distribution, Choice):
            return value
        number = float(cast(float, value))
        return math.log(number) if distribution.is_log else number

    def _decoded(self, path: str, value: Any) -> Scalar:
        distribution = self._searched[path]
        if isinstance(distribution, Choice):
            return cast(Scalar, value)
        return distribution.snapped(math.exp(value) if self._setting.kind == "pb2" and distribution.is_log else value)

    def _bounds(self, path: str, distribution: Distribution) -> list[float]:
        assert isinstance(distribution, Uniform | Whole)
        return [self._encoded(path, distribution.low), self._encoded(path, distribution.high)]


def _mutation(distribution: Distribution) -> Any:
    """A list is walked to the left and right, so it is sorted; anything else is multiplied or drawn anew."""
    if isinstance(distribution, Choice):
        return sorted(distribution.options, key=lambda option: (isinstance(option, str), option))
    return lambda: drawn(distribution, cast(random.Random, random))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Tune draws from the process's own random numbers: give it a known state, and give the old one back.

    PB2 fits to a handful of points, and scikit-learn warns of each such fit; nobody could act on that.
    """
    before, before_numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(before)
        np.random.set_state(before_numpy)
