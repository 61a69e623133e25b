"""What a sweep found: its best over time and what each step cost, what mattered, lr against batch size."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from tuning.optuna_trials import optuna_trial, study_with
from tuning.paths import applied, found
from tuning.space import Space
from tuning.spec import SweepSpec
from tuning.spec_parts import Mode
from tuning.trial import ENDED, Trial, TrialState
from tuning.verdicts import score

_LEAST_FOR_IMPORTANCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BestPoint:
    """How things stood when a trial had ended. Samples and worker-seconds are those of all trials until then.

    ``best`` is None until some trial is complete. For an improvement ``cost_s`` are the worker-seconds since
    the one before, and ``gain`` is by how much it is better (None for the first).
    """

    number: int
    best: float | None
    samples: int
    worker_s: float
    is_improvement: bool = False
    gain: float | None = None
    cost_s: float | None = None


def best_so_far(ended: Iterable[Trial], mode: Mode) -> list[BestPoint]:
    """One point a trial, in the order in which they ended, which the caller knows."""
    points: list[BestPoint] = []
    best: float | None = None
    samples, worker_s, paid_s = 0, 0.0, 0.0
    for trial in ended:
        samples, worker_s = samples + trial.samples, worker_s + trial.seconds
        value = trial.value if trial.state is TrialState.COMPLETE else None
        if value is None or not math.isfinite(value) or (best is not None and score(value, mode) <= score(best, mode)):
            points.append(BestPoint(number=trial.number, best=best, samples=samples, worker_s=worker_s))
            continue
        gain = None if best is None else score(value, mode) - score(best, mode)
        points.append(
            BestPoint(
                number=trial.number,
                best=value,
                samples=samples,
                worker_s=worker_s,
                is_improvement=True,
                gain=gain,
                cost_s=worker_s - paid_s,
            )
        )
        best, paid_s = value, worker_s
    return points


def importance(trials: Sequence[Trial], space: Space, mode: Mode) -> dict[str, float]:
    """Share of each parameter in what makes a trial one of the better ones; the shares sum to 1.

    PED-ANOVA (Watanabe et al. 2023, arXiv 2304.10255): some 60 ms for 100 trials. Empty where too few trials are
    complete or all are alike; parameters with conditions are left out, as not every trial has them.
    """
    complete = [t for t in trials if t.state is TrialState.COMPLETE and math.isfinite(t.value or math.nan)]
    if len(complete) < _LEAST_FOR_IMPORTANCE or len({t.value for t in complete}) == 1:
        return {}
    shared = [p.path for p in space.parameters if not p.when and p.distribution.count() != 1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = study_with([optuna_trial(trial, space) for trial in complete], mode)
        shares = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(), params=shared)
    return {path: float(share) for path, share in shares.items() if math.isfinite(share)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LrBatchPoint:
    """One trial in the map of learning rate (at the base batch) against global batch."""

    number: int
    lr: float
    global_batch: int
    value: float | None
    state: TrialState


def lr_batch_map(spec: SweepSpec, trials: Iterable[Trial]) -> list[LrBatchPoint]:
    """All trials that have ended, also where only one of the two was searched; value: the last that is known."""
    points = []
    for trial in trials:
        if trial.state not in ENDED:
            continue
        job = applied(spec.job, trial.params)
        lr, batch = (found(job, path)[1] for path in ("optimizer.lr", "batch.global_size"))
        last = trial.reports[-1].value if trial.reports else None
        value = trial.value if trial.value is not None else last
        points.append(
            LrBatchPoint(number=trial.number, lr=float(lr), global_batch=int(batch), value=value, state=trial.state)
        )
    return points
