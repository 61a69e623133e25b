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
    ADASCALE = "adascale"


class Decay(StrEnum):
    """What follows the warm-up."""

    COSINE = "cosine"
    LINEAR = "linear"
    CONSTANT = "constant"


def gain(noise_scale: float | None, base_batch: int, batch: int) -> float:
    """How many SGD steps of ``base_batch`` samples one of ``batch`` is worth, all in samples: from 1 to their ratio.

    Johnson et al. 2020, arXiv 2007.05105, definition 1, (s2 + m2) / (s2 / S + m2) with the variance s2 = tr(Sigma) /
    base_batch of a small step's gradient, m2 = |G|^2 and S = batch / base_batch, in terms of the noise scale
    tr(Sigma) / |G|^2. The least where that is not known (None): then a larger batch is worth no more than a small one.
    """
    if noise_scale is None:
        return min(1.0, batch / base_batch)
    return (noise_scale / base_batch + 1.0) / (noise_scale / batch + 1.0)


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

    def at(self, cursor: int, total_samples: int, global_batch: int, noise_scale: float | None = None) -> float:
        """The learning rate of the step that begins where ``cursor`` samples count, and draws ``global_batch``.

        Progress is taken at the end of the batch, so that the first step of a warm-up already
        moves and a decay to zero is reached only by the last. Linear scaling: Goyal et al. 2017,
        arXiv 1706.02677; square root: Krizhevsky 2014, arXiv 1404.5997, eq. in section 5; ``adascale`` by ``gain``,
        of the noise scale in samples.
        """
        counted = self.counted(global_batch, noise_scale)
        progress = min(1.0, (cursor + counted) / total_samples)
        ramp = 1.0 if self.ramp is None else self.ramp.at(cursor + global_batch)
        scale = self._scale(global_batch, noise_scale)
        return self.lr * scale * self._shape(progress, counted / total_samples) * ramp

    def counted(self, global_batch: int, noise_scale: float | None = None) -> float:
        """How many samples' progress a step of ``global_batch`` makes: all of them, but for ``adascale``.

        There it is what as many steps of ``base_batch`` samples make as the gain says: never more than are drawn, and
        all of those where they are no more than ``base_batch``.
        """
        if self.rule is not LrRule.ADASCALE:
            return float(global_batch)
        return min(float(global_batch), self.base_batch * gain(noise_scale, self.base_batch, global_batch))

    def eased(
        self,
        last: float,
        cursor: int,
        total_samples: int,
        global_batch: int,
        noise_scale: float | None = None,
        most_samples: int | None = None,
    ) -> LrPlan:
        """With a warm-up from ``cursor`` on where the rate would rise above ``last`` at once.

        It is as long as the first, but of ``most_samples`` at most. ``last`` is of the same ``noise_scale``.
        """
        plain, samples = replace(self, ramp=None), round(self.warmup_fraction * total_samples)
        if most_samples is not None:
            samples = min(samples, most_samples)
        rate = plain.at(cursor, total_samples, global_batch, noise_scale)
        if samples == 0 or rate <= last:
            return plain
        return replace(plain, ramp=Ramp(begin=cursor, samples=samples, share=last / rate))

    def _scale(self, global_batch: int, noise_scale: float | None) -> float:
        scale = global_batch / self.base_batch
        match self.rule:
            case LrRule.ADASCALE:
                return gain(noise_scale, self.base_batch, global_batch)
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
