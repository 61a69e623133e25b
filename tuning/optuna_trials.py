"""Rows of trials as Optuna's: the study that samplers and importances read is made of them in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, create_trial

from tuning.distributions import Choice, Distribution, Uniform, Whole
from tuning.space import Space
from tuning.spec_parts import Mode
from tuning.trial import Trial, TrialState

_STATES = {
    TrialState.COMPLETE: optuna.trial.TrialState.COMPLETE,
    TrialState.PRUNED: optuna.trial.TrialState.PRUNED,
    TrialState.FAILED: optuna.trial.TrialState.FAIL,
}


def optuna_distribution(distribution: Distribution) -> BaseDistribution:
    """The same range in Optuna's words."""
    match distribution:
        case Uniform(low=low, high=high, step=step, is_log=is_log):
            return FloatDistribution(low, high, log=is_log, step=step)
        case Whole(low=low, high=high, step=step, is_log=is_log):
            return IntDistribution(low, high, log=is_log, step=step)
        case Choice(options=options):
            return CategoricalDistribution(options)


def optuna_trial(
    trial: Trial, space: Space, attributes: Mapping[str, object] | None = None, source: str = ""
) -> FrozenTrial:
    """A row as Optuna's trial. ``attributes`` are what a sampler noted on it; ``source`` the sweep it came from.

    A trial that waits at a rung is told as pruned: what it reported so far is all that is known of it, and if
    it is promoted its row will say more. One whose result or last report is no number is told as pruned and without
    reports, which samplers take for the worst there is, unlike a failed one, which they leave out.
    """
    is_bad = bool(trial.reports) and not math.isfinite(trial.reports[-1].value)
    reports = {} if is_bad else {r.samples: r.value for r in trial.reports if math.isfinite(r.value)}
    state = _STATES.get(trial.state)
    if state is None:
        is_held = trial.state is TrialState.WAITING and bool(trial.reports)
        state = optuna.trial.TrialState.PRUNED if is_held else optuna.trial.TrialState.RUNNING
    value = trial.value if state is optuna.trial.TrialState.COMPLETE else None
    if state is optuna.trial.TrialState.COMPLETE and (value is None or not math.isfinite(value)):
        state, value, reports = optuna.trial.TrialState.PRUNED, None, {}
    searched = {p.path: optuna_distribution(p.distribution) for p in space.parameters if p.path in trial.params}
    return create_trial(
        state=state,
        value=value,
        params=dict(trial.params),
        distributions=searched,
        intermediate_values=reports,
        user_attrs={"source": source} if source else {},
        system_attrs=dict(attributes or {}),
    )


def study_with(trials: Iterable[FrozenTrial], mode: Mode, sampler: BaseSampler | None = None) -> optuna.Study:
    """A study in memory that holds the trials and nothing else."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would tell of each study that is made
    direction = StudyDirection.MAXIMIZE if mode == "max" else StudyDirection.MINIMIZE
    study = optuna.create_study(storage=None, sampler=sampler, direction=direction)
    study.add_trials(trials)
    return study
