"""What one parameter may be: uniform numbers, whole numbers, choices. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from tuning.spec_parts import DistributionSpec
from tuning.values import Scalar, same
from workers.spec_parts import MAX_SAMPLES

_INSIDE = 0.381966
"""A place between two bounds that is a whole number, or the middle, only by chance."""

_LEAST_WIDTH = 1e-300
_LEAST_WIDTH_FRACTION = 1e-12
"""Ranges narrower than this, absolutely or relative to their bounds, make samplers divide by zero."""


def exact(number: float) -> Fraction:
    """The number that was written: 0.1 is one tenth, not the nearest binary fraction."""
    return Fraction(repr(number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """Numbers from ``low`` to ``high``, both included; with ``step`` only ``low`` plus multiples of it."""

    low: float
    high: float
    step: float | None = None
    is_log: bool = False

    def contains(self, value: Scalar) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool) or not self.low <= value <= self.high:
            return False
        return self.step is None or math.isclose(self.snapped(float(value)), value, rel_tol=1e-12, abs_tol=1e-300)

    def snapped(self, value: float) -> float:
        """The nearest value that can be written: samplers add up steps in binary, and miss by a hair."""
        if self.step is None:
            return min(self.high, max(self.low, value))
        index = round((exact(value) - exact(self.low)) / exact(self.step))
        return self._at(min(max(0, index), self.count() - 1))

    def count(self) -> int:
        """How many values there are; 0 stands for too many to count."""
        if self.low == self.high:
            return 1
        if self.step is None:
            return 0
        return int((exact(self.high) - exact(self.low)) / exact(self.step)) + 1

    def at(self, index: int) -> float:
        """The value of that index. Only where ``count`` is above 0."""
        return self._at(index)

    def edges(self) -> tuple[Scalar, ...]:
        """Values that stand for all in a check whose rules are bounds or wholeness."""
        if self.low == self.high:
            return (self.low,)
        inside = self.low + _INSIDE * (self.high - self.low) if self.step is None else self._at(1)
        return tuple(dict.fromkeys((self.low, inside, self.high)))

    def _at(self, index: int) -> float:
        return float(exact(self.low) + index * exact(self.step or 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """Whole numbers from ``low`` to ``high``, both included, ``step`` apart."""

    low: int
    high: int
    step: int = 1
    is_log: bool = False

    def contains(self, value: Scalar) -> bool:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return self.low <= value <= self.high and (value - self.low) % self.step == 0

    def snapped(self, value: float) -> int:
        """The nearest value that there is."""
        return self.low + min(max(0, round((value - self.low) / self.step)), self.count() - 1) * self.step

    def count(self) -> int:
        return (self.high - self.low) // self.step + 1

    def at(self, index: int) -> int:
        return self.low + index * self.step

    def edges(self) -> tuple[Scalar, ...]:
        return (self.low,) if self.low == self.high else (self.low, self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of ``options``, in no order."""

    options: tuple[Scalar, ...]

    def contains(self, value: Scalar) -> bool:
        return any(same(option, value) for option in self.options)

    def count(self) -> int:
        return len(self.options)

    def at(self, index: int) -> Scalar:
        return self.options[index]

    def edges(self) -> tuple[Scalar, ...]:
        return self.options


Distribution: TypeAlias = Uniform | Whole | Choice


def drawn(distribution: Distribution, chance: random.Random) -> Scalar:
    """A value by chance; where the range is logarithmic, each factor of ten is as likely as the next."""
    if isinstance(distribution, Choice) or not distribution.is_log:
        if distribution.count() == 0:
            assert isinstance(distribution, Uniform)
            return chance.uniform(distribution.low, distribution.high)
        return distribution.at(chance.randrange(distribution.count()))
    return distribution.snapped(math.exp(chance.uniform(math.log(distribution.low), math.log(distribution.high))))


def distribution_of(spec: DistributionSpec) -> Distribution:
    """What a spec means that ``faults`` found nothing wrong with."""
    if spec.choice is not None:
        return Choice(options=tuple(spec.choice))
    if spec.int is not None:
        low, high = spec.int
        return Whole(low=low, high=high, step=int(spec.step or 1), is_log=bool(spec.log))
    if spec.log_uniform is not None:
        return Uniform(low=spec.log_uniform[0], high=spec.log_uniform[1], is_log=True)
    assert spec.uniform is not None
    return Uniform(low=spec.uniform[0], high=spec.uniform[1], step=spec.step)


def faults(spec: DistributionSpec, is_secret: bool = False) -> list[tuple[str, str]]:
    """Key of the distribution (empty for all of it) and what is wrong with it, for each thing that is wrong.

    Of one that ``is_secret``, as the value of a variable may be, nothing that was given is named.
    """
    kinds = [kind for kind in ("uniform", "log_uniform", "int", "choice") if getattr(spec, kind) is not None]
    if len(kinds) != 1:
        seen = f"{' and '.join(kinds)}; keep one" if kinds else "none of them; write one, as in uniform: [0, 1]"
        return [("", f"exactly one of uniform, log_uniform, int and choice says what is searched; given: {seen}")]
    kind = kinds[0]
    if spec.choice is not None:
        told = _choice_fault(spec.choice, is_secret)
        return [*([("choice", told)] if told else []), *_misplaced(spec, kind)]
    if is_secret:
        return [(kind, "the value of a variable is a text; list a choice of texts")]
    low, high = getattr(spec, kind)
    if low > high:
        return [(kind, f"low={low} is above high={high}; swap them")]
    if not math.isfinite(high - low):
        return [(kind, f"{low} to {high} is too wide for a number; narrow it, or use log_uniform")]
    if low < high and high - low < max(_LEAST_WIDTH, _LEAST_WIDTH_FRACTION * max(abs(low), abs(high))):
        return [
            (kind, f"{low!r} to {high!r} is too narrow for a sampler to tell numbers apart; widen it, or list a choice")
        ]
    return _log_faults(spec, kind, low) + _misplaced(spec, kind) + _step_faults(spec, kind)


def _log_faults(spec: DistributionSpec, kind: str, low: float) -> list[tuple[str, str]]:
    if kind == "log_uniform" and low <= 0:
        return [(kind, f"a logarithm needs bounds above 0 (seen: low={low}); begin at 1e-6, say, or use uniform")]
    if kind == "int" and spec.log and low < 1:
        return [(kind, f"with log the low bound must be at least 1 (seen: {low}); raise it, or leave out log")]
    return []


def _misplaced(spec: DistributionSpec, kind: str) -> list[tuple[str, str]]:
    found = []
    if spec.step is not None and kind in ("choice", "log_uniform"):
        found.append(("step", f"step goes with uniform and int, not with {kind}; leave it out, or list a choice"))
    if spec.log is not None and kind != "int":
        instead = {"uniform": "; use log_uniform", "log_uniform": ", which is one already; leave it out"}
        found.append(("log", f"log goes with int, not with {kind}{instead.get(kind, '; leave it out')}"))
    return found


def _step_faults(spec: DistributionSpec, kind: str) -> list[tuple[str, str]]:
    step = spec.step
    if step is None or kind == "log_uniform":
        return []
    if step <= 0:
        return [
            ("step", f"a step must be above 0 (seen: {step}); leave it out to search everything between the bounds")
        ]
    if kind == "int" and not step.is_integer():
        return [("step", f"between whole numbers a step is whole too (seen: {step}); use uniform, or a whole step")]
    if kind == "int" and spec.log:
        return [("step", f"step and log exclude each other (seen: step={step}); leave one out, or list a choice")]
    low, high = (spec.int or spec.uniform or [0, 0])[:2]
    steps = (exact(high) - exact(low)) / exact(step)
    if steps > MAX_SAMPLES:
        return [("step", f"steps of {step:g} from {low:g} to {high:g} are too many to tell apart; leave step out")]
    if steps.denominator == 1:
        return []
    last = float(exact(low) + int(steps) * exact(step))
    reach = f"set high to {last:g}" if last > low else f"use a step of at most {high - low:g}"
    return [("step", f"steps of {step:g} from {low:g} do not meet high={high:g}; {reach}")]


def _choice_fault(options: list[Scalar], is_secret: bool) -> str:
    for index, option in enumerate(options):
        earlier = next((one for one in options[:index] if one == option), _NOTHING)
        if earlier is _NOTHING:
            continue
        if is_secret:
            return "one of the values is listed twice; keep one"
        if type(earlier) is type(option):
            return f"{option!r:.80} is listed twice; keep one"
        return f"{earlier!r} and {option!r} are equal to a sampler; keep one"
    return ""


_NOTHING = object()
