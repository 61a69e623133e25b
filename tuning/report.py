"""What a sweep found: its best over time and what each step cost, lr against batch size. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tuning.paths import applied, found
from tuning.spec import SweepSpec, trial_spec
from tuning.spec_parts import Mode
from tuning.trial import ENDED, Trial, TrialState, last_value
from tuning.values import Params
from tuning.verdicts import score

ALIKE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class BestPoint:
    """How things stood when a trial had ended. Samples and worker-seconds are those of all trials until then.

    ``best``, of trial ``best_number`` (of equals the first that was started), is None until some trial is complete. It
    is an improvement where it is better than the one before by more than ``ALIKE`` of the larger of the two: less than
    that no run bears out, nor do the digits that are shown. Smaller steps become the best, too, and are an improvement
    once they add up to one. For an improvement ``cost_s`` are the worker-seconds since the one before, and ``gain`` is
    by how much it is better (None for the first).
    """

    number: int
    best: float | None
    best_number: int | None
    samples: int
    worker_s: float
    is_improvement: bool = False
    gain: float | None = None
    cost_s: float | None = None


def best_so_far(ended: Iterable[Trial], mode: Mode) -> list[BestPoint]:
    """One point a trial, in the order in which they ended, which the caller knows."""
    points: list[BestPoint] = []
    best, told, best_number = -math.inf, -math.inf, None
    samples, worker_s, paid_s = 0, 0.0, 0.0
    for trial in ended:
        samples, worker_s = samples + trial.samples, worker_s + trial.seconds
        value = trial.value if trial.state is TrialState.COMPLETE else None
        reached = -math.inf if value is None else score(value, mode)
        is_equal = best_number is not None and reached == best
        if reached > best or (is_equal and trial.number < (best_number or 0)):
            best, best_number = reached, trial.number
        is_improvement = best > told and not math.isclose(best, told, rel_tol=ALIKE)
        points.append(
            BestPoint(
                number=trial.number,
                best=None if best_number is None else score(best, mode),
                best_number=best_number,
                samples=samples,
                worker_s=worker_s,
                is_improvement=is_improvement,
                gain=best - told if is_improvement and math.isfinite(told) else None,
                cost_s=worker_s - paid_s if is_improvement else None,
            )
        )
        if is_improvement:
            told, paid_s = best, worker_s
    return points


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """From ``samples`` on a state was trained with ``params``, by trial ``number``."""

    number: int
    samples: int
    params: Params


def schedule_of(trials: Mapping[int, Trial], number: int) -> list[Stage]:
    """With what the state that a trial ended with was trained, from its first sample on, whichever trials had it."""
    stages: list[Stage] = []
    until_s = math.inf
    while (trial := trials.get(number)) is not None:
        # What a trial took over later than another took its state has nothing to do with that one.
        changes = [change for change in trial.changes if change.time < until_s]
        if not changes:
            return [Stage(number=number, samples=0, params=trial.first_params), *reversed(stages)]
        last = changes[-1]
        stages.append(Stage(number=number, samples=last.samples, params=last.params))
        number, until_s = number if last.donor is None else last.donor, last.time
    return stages[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LrBatchPoint:
    """One trial in the map of learning rate (at the base batch) against global batch."""

    number: int
    lr: float
    global_batch: int
    value: float | None
    state: TrialState


def lr_batch_map(spec: SweepSpec, trials: Iterable[Trial]) -> list[LrBatchPoint]:
    """All trials that have ended, also where only one of the two was searched; value: its last, if a number."""
    points = []
    for trial in trials:
        if trial.state not in ENDED:
            continue
        lr, batch = _lr_and_batch(spec, trial)
        value = trial.value if trial.value is not None else last_value(trial.reports)
        points.append(
            LrBatchPoint(
                number=trial.number,
                lr=lr,
                global_batch=batch,
                value=value,
                state=trial.state,
            )
        )
    return points


def _lr_and_batch(spec: SweepSpec, trial: Trial) -> tuple[float, int]:
    told = applied(spec.job, trial.params)
    lr, batch = (found(told, path)[1] for path in ("optimizer.lr", "batch.global_size"))
    if lr is None or batch is None:
        # What a condition leaves out has no value in the sweep's job either: the parsed one has its default.
        job = trial_spec(spec, trial.number, trial.params)
        return job.optimizer.lr, job.batch.global_size
    return float(lr), int(batch)
