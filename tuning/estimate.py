"""What a sweep will cost, told before it starts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tuning.asha import rungs_of
from tuning.hyperband import Hyperband
from tuning.promotion_plan import num_runs
from tuning.pruning import spelled_out
from tuning.space import space_of
from tuning.spec import SweepSpec
from tuning.spec_parts import AshaSpec, HyperbandSpec, MedianSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Bounds of what is trained: ``low`` if pruning is as sharp as it can be, ``high`` if nothing is pruned.

    ``confirm`` are the runs of a promotion, none without one. Seconds are those of workers, summed; None where
    it is not known how fast such a job trains.
    """

    num_trials: int
    samples_low: int
    samples_high: int
    confirm_samples_low: int
    confirm_samples_high: int
    worker_s_low: float | None
    worker_s_high: float | None


def estimate(
    spec: SweepSpec, total_samples: int, samples_per_worker_s: float | None = None, *, has_incumbent: bool = False
) -> Estimate:
    """The cost of a whole sweep whose trials train on ``total_samples`` each.

    ``samples_per_worker_s`` is what jobs of this entrypoint did per second of one worker, their starts counted.
    ``has_incumbent``: the configuration that is to be replaced lies in the space, and is tried first.
    """
    count = space_of(spec.space).count()
    num_trials = min(spec.trials, count) if count else spec.trials
    high = num_trials * total_samples
    low = round(high * least_share(spec, total_samples))
    confirming = num_runs(num_trials, has_incumbent=has_incumbent) if spec.promote else (0, 0)
    confirm_low, confirm_high = (runs * total_samples for runs in confirming)
    seconds: list[float | None] = [None, None]
    if samples_per_worker_s:
        seconds = [samples / samples_per_worker_s for samples in (low + confirm_low, high + confirm_high)]
    return Estimate(
        num_trials=num_trials,
        samples_low=low,
        samples_high=high,
        confirm_samples_low=confirm_low,
        confirm_samples_high=confirm_high,
        worker_s_low=seconds[0],
        worker_s_high=seconds[1],
    )


def least_share(spec: SweepSpec, total_samples: int) -> float:
    """The share of a full search that is trained if exactly one in ``reduction`` passes each rung."""
    pruner = spelled_out(spec.pruner)
    match pruner:
        case AshaSpec():
            rungs = rungs_of(pruner.min_samples, pruner.reduction, total_samples)
            return _halving_share(rungs, pruner.reduction, total_samples)
        case HyperbandSpec():
            rungs = rungs_of(pruner.min_samples, pruner.reduction, total_samples)
            band = Hyperband(mode=spec.mode, rungs=rungs, reduction=pruner.reduction)
            skipped = [band.bracket_of(number) for number in range(spec.trials)]
            return sum(_halving_share(rungs[s:], pruner.reduction, total_samples) for s in skipped) / len(skipped)
        case MedianSpec():
            first = min(total_samples, pruner.min_samples or max(1, total_samples // 9))
            free = min(pruner.min_trials, spec.trials) / spec.trials
            return free + (1 - free) * (0.5 + 0.5 * first / total_samples)
        case None:
            return 1.0


def _halving_share(rungs: tuple[int, ...], reduction: int, total_samples: int) -> float:
    ends = (*rungs, total_samples)
    lengths = [end - begin for begin, end in zip((0, *rungs), ends, strict=True)]
    return sum(length / float(reduction) ** rung for rung, length in enumerate(lengths)) / total_samples
