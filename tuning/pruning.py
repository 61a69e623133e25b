"""The pruner that a spec names. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tuning.asha import Asha, rungs_of
from tuning.hyperband import Hyperband
from tuning.lengths import total_range
from tuning.median import Median
from tuning.spec import SweepSpec
from tuning.spec_parts import AshaSpec, HyperbandSpec, MedianSpec, Mode, PrunerName, PrunerSpec
from tuning.trial import Trial
from tuning.verdicts import Continue, Decision, Promote, Pruner


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPruner:
    """Every trial trains to its end."""

    rungs: tuple[int, ...] = ()

    def decide(self, trial: Trial, others: Iterable[Trial]) -> Decision:
        return Continue(reason="nothing is pruned")

    def promote(self, trials: Iterable[Trial], *, can_start: bool) -> Promote | None:
        return None


def pruner_of(spec: PrunerName | PrunerSpec, mode: Mode, total_samples: int) -> Pruner:
    """The pruner of a sweep whose trials each train on ``total_samples``, where they differ on the fewest."""
    match spelled_out(spec):
        case AshaSpec() as asha:
            rungs = rungs_of(asha.min_samples, asha.reduction, total_samples)
            return Asha(mode=mode, rungs=rungs, reduction=asha.reduction, promotes=asha.promote)
        case HyperbandSpec() as hyperband:
            rungs = rungs_of(hyperband.min_samples, hyperband.reduction, total_samples)
            return Hyperband(mode=mode, rungs=rungs, reduction=hyperband.reduction)
        case MedianSpec() as median:
            first = median.min_samples or max(1, total_samples // 9)
            return Median(mode=mode, min_samples=first, min_trials=median.min_trials)
        case None:
            return NoPruner()


def rungs_for(spec: SweepSpec, samples_per_epoch: int | None) -> tuple[int, ...]:
    """Where the trials of a sweep are compared, in samples; nowhere while it is not known on how many they train."""
    totals = total_range(spec, samples_per_epoch)
    return () if totals is None else pruner_of(spec.pruner, spec.mode, totals[0]).rungs


def spelled_out(spec: PrunerName | PrunerSpec) -> AshaSpec | HyperbandSpec | MedianSpec | None:
    """A word means the pruner with its defaults; ``none`` means None."""
    if isinstance(spec, PrunerSpec):
        return spec.asha or spec.hyperband or spec.median
    match spec:
        case "asha":
            return AshaSpec()
        case "hyperband":
            return HyperbandSpec()
        case "median":
            return MedianSpec()
        case "none":
            return None
