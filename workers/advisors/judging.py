"""Whether a change paid, by the steps before it and those since. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from workers.medians import relative_error

JUDGE_STEPS = 10
"""Steps measured before a change may be judged; while noise leaves it open, up to ``MAX_JUDGE_STEPS``."""

MAX_JUDGE_STEPS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Measured throughput; ``error`` is the standard error of the median, relative to it."""

    samples_per_s: float
    error: float
    num_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a change turned out to be worth: ``gain`` is progress a second over that before."""

    gain: float
    is_kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A change that was measured: what it was by name (``{"parts": [96, 32]}``) before and after, the speed of each.

    ``told`` is a sentence without its full stop; ``more`` goes to the row besides.
    """

    actor: str
    before: Mapping[str, object]
    after: Mapping[str, object]
    rate: Rate
    now: Rate
    expected_gain: float
    verdict: Verdict
    told: str
    more: Mapping[str, object] = field(default_factory=dict)


def rate_of(samples_per_s: tuple[float, ...]) -> Rate | None:
    """The rate of some steps, None without any. Robust: a step that waited spoils nothing."""
    if not samples_per_s:
        return None
    error = relative_error(samples_per_s)
    return Rate(samples_per_s=median(samples_per_s), error=error, num_steps=len(samples_per_s))


def judge(
    before: Rate,
    now: Rate | None,
    *,
    least_gain: float,
    worth: float = 1.0,
    least_steps: int | None = None,
    most_steps: int | None = None,
    gives_doubt: bool = False,
) -> Verdict | None:
    """Whether a change pays, None while it is too early to tell; a sample is ``worth`` so many of those before.

    What stays open is as is likelier, or pays where the change is given the benefit of the doubt.
    """
    if now is None or now.num_steps < (JUDGE_STEPS if least_steps is None else least_steps):
        return None
    gain = now.samples_per_s / before.samples_per_s * worth
    doubt = 2 * (before.error**2 + now.error**2) ** 0.5
    is_open = gain * (1 - doubt) < least_gain <= gain * (1 + doubt)
    if is_open and now.num_steps < (MAX_JUDGE_STEPS if most_steps is None else most_steps):
        return None
    return Verdict(gain=gain, is_kept=gain * (1 + doubt if gives_doubt else 1) >= least_gain)


def in_words(verdict: Verdict, of: str, expected_gain: float, back: str) -> str:
    """``1.44 times as fast as OF (expected: 1.61)``, and what follows where that is too little."""
    gain = f"{verdict.gain:.2f} times as fast as {of} (expected: {expected_gain:.2f})"
    return gain if verdict.is_kept else f"only {gain}; {back}"
