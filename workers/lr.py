"""The learning-rate plan: warm-up and decay driven by samples, scaled to the global batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum


class LrRule(StrEnum):
    """How the learning rate follows the global batch (S = global batch / base batch)."""

    NONE = "none"
    LINEAR = "linear"
    SQRT = "sqrt"


class Decay(StrEnum):
    """What follows the warm-up."""

    COSINE = "cosine"
    LINEAR = "linear"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """A later rise, warmed up like the first: from ``begin`` on, within ``samples``, from ``share`` of the rate to all.

    Goyal et al. 2017, arXiv 1706.02677, section 2.2: a rate that rises at once may throw off what was learned.
    """

    begin: int
    samples: int
    share: float

    def at(self, end: int) -> float:
        """The share of the rate for the step that ends with so many samples drawn."""
        passed = min(1.0, max(0.0, (end - self.begin) / self.samples))
        return self.share + (1.0 - self.share) * passed


@dataclass(frozen=True, slots=True, kw_only=True)
class LrPlan:
    """``lr`` is meant at ``base_batch`` samples; ``warmup_fraction`` is a share of all samples."""

    lr: float
    base_batch: int
    rule: LrRule = LrRule.SQRT
    warmup_fraction: float = 0.05
    decay: Decay = Decay.COSINE
    ramp: Ramp | None = None

    def at(self, cursor: int, total_samples: int, global_batch: int) -> float:
        """The learning rate of the step that draws samples [cursor, cursor + global_batch).

        Progress is taken at the end of the batch, so that the first step of a warm-up already
        moves and a decay to zero is reached only by the last. Linear scaling: Goyal et al. 2017,
        arXiv 1706.02677; square root: Krizhevsky 2014, arXiv 1404.5997, eq. in section 5.
        """
        progress = min(1.0, (cursor + global_batch) / total_samples)
        ramp = 1.0 if self.ramp is None else self.ramp.at(cursor + global_batch)
        return self.lr * self._scale(global_batch) * self._shape(progress, global_batch / total_samples) * ramp

    def eased(
        self, last: float, cursor: int, total_samples: int, global_batch: int, most_samples: int | None = None
    ) -> LrPlan:
        """With a warm-up from ``cursor`` on where the rate would rise above ``last`` at once.

        It is as long as the first, but of ``most_samples`` at most.
        """
        plain, samples = replace(self, ramp=None), round(self.warmup_fraction * total_samples)
        if most_samples is not None:
            samples = min(samples, most_samples)
        rate = plain.at(cursor, total_samples, global_batch)
        if samples == 0 or rate <= last:
            return plain
        return replace(plain, ramp=Ramp(begin=cursor, samples=samples, share=last / rate))

    def _scale(self, global_batch: int) -> float:
        scale = global_batch / self.base_batch
        match self.rule:
            case LrRule.LINEAR:
                return scale
            case LrRule.SQRT:
                return math.sqrt(scale)
            case LrRule.NONE:
                return 1.0

    def _shape(self, progress: float, step_fraction: float) -> float:
        if progress < self.warmup_fraction:
            return progress / self.warmup_fraction
        # The last step starts one step before the end: its rate is that of its own beginning.
        begin = max(0.0, progress - step_fraction)
        past = max(0.0, begin - self.warmup_fraction) / max(1e-12, 1.0 - self.warmup_fraction)
        match self.decay:
            case Decay.COSINE:
                return 0.5 * (1.0 + math.cos(math.pi * min(1.0, past)))
            case Decay.LINEAR:
                return max(0.0, 1.0 - past)
            case Decay.CONSTANT:
                return 1.0
