"""What a part of the batch costs a worker, T(b) = fixed + sample * b, learnt from the rounds that it had. Pure.

Recursive least squares with forgetting, in its information form: sums that fade (AntDT, Cannikin and LB-BSP fit the
same line). Seconds throughout; ``b`` is in samples.
"""

from __future__ import annotations

from dataclasses import dataclass

FORGET = 0.98
"""How much of an observation is left when the next one comes: the line remembers about fifty."""

RIDGE = 0.05
"""Observations' worth of belief that the fixed part is 0: all there is to go by while only one size was seen."""

LEAST_SAMPLE_SHARE = 0.01
"""Of its mean time a worker is taken to spend at least so much on its samples: none is had for nothing."""

PRIOR_SPREAD = 0.05
PRIOR_WEIGHT = 3.0
"""The relative spread that is expected of an observation, and how many it takes to know better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A line that was fitted; ``error`` is the standard error of a time that it tells, relative to it."""

    fixed_s: float
    sample_s: float
    error: float = 0.0

    def seconds(self, samples: float) -> float:
        """What a part of so many samples takes."""
        return self.fixed_s + self.sample_s * samples


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """Faded sums over observations (b, t): their number, its square for the error, and the moments."""

    weight: float = 0.0
    weight_squared: float = 0.0
    b: float = 0.0
    bb: float = 0.0
    t: float = 0.0
    bt: float = 0.0
    tt: float = 0.0

    def seen(self, samples: int, seconds: float) -> CostLine:
        """The line after one more observation of a part of at least one sample."""
        return CostLine(
            weight=FORGET * self.weight + 1.0,
            weight_squared=FORGET**2 * self.weight_squared + 1.0,
            b=FORGET * self.b + samples,
            bb=FORGET * self.bb + samples * samples,
            t=FORGET * self.t + seconds,
            bt=FORGET * self.bt + samples * seconds,
            tt=FORGET * self.tt + seconds * seconds,
        )

    def fitted(self) -> Cost:
        """The line through what was seen, which must be something; neither part of it is below 0."""
        assert self.weight > 0
        determinant = (self.weight + RIDGE) * self.bb - self.b * self.b
        fixed_s = max(0.0, (self.t * self.bb - self.b * self.bt) / determinant)
        sample_s = (self.bt - fixed_s * self.b) / self.bb
        least_s = LEAST_SAMPLE_SHARE * self.t / self.b
        if sample_s < least_s:
            sample_s = least_s
            fixed_s = max(0.0, (self.t - sample_s * self.b) / self.weight)
        return Cost(fixed_s=fixed_s, sample_s=sample_s, error=self._error(fixed_s, sample_s))

    def _error(self, fixed_s: float, sample_s: float) -> float:
        mean_s = self.t / self.weight
        if mean_s <= 0.0:
            return 0.0
        explained = 2 * (fixed_s * self.t + sample_s * self.bt - fixed_s * sample_s * self.b)
        rest = max(0.0, self.tt - explained + fixed_s**2 * self.weight + sample_s**2 * self.bb)
        variance = (rest + PRIOR_WEIGHT * (PRIOR_SPREAD * mean_s) ** 2) / (self.weight + PRIOR_WEIGHT)
        num = self.weight**2 / self.weight_squared
        return float((variance / num) ** 0.5) / mean_s
