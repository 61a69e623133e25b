"""Whether a sweep's winner is better than what is in use: paired runs on fresh, shared seeds. Pure.

The best of many noisy trials looks better than it is (of 32 equal ones by two standard deviations), so the
sweep's own value decides nothing. The finalists and the incumbent run with the same new seeds, and their
differences are tested by exact sign flips: if a finalist were no better, each difference could as well have had
the other sign. Four looks and up to three finalists share one risk of 5 % (Bonferroni over looks, Holm 1979
over finalists).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tuning.promotion_plan import LOOKS, NUM_FINALISTS
from tuning.seeds import seed_of
from tuning.spec_parts import Mode
from tuning.trial import Trial, TrialState
from tuning.values import Params, key_of
from tuning.verdicts import score

RISK = 0.05
MIN_EFFECT = 0.005
_CONFIDENCE = 0.9
_RESAMPLES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What one configuration reached, by seed in the order of the seeds; None where a run failed.

    ``seconds`` are worker-seconds of a run, on average.
    """

    scores: tuple[float | None, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A finalist against the incumbent. Effects are relative to the incumbent's mean; above 0 is better.

    ``low`` to ``high`` holds the true effect with 90 % (bootstrap). ``p_value`` is one-sided. ``better_fraction``
    is the share of pairs that the finalist won, ties by half.
    """

    number: int
    num_pairs: int
    effect: float
    low: float
    high: float
    p_value: float
    better_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAgain:
    """Run these finalists and the incumbent until each has ``num_pairs`` results, then judge again."""

    num_pairs: int
    finalists: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Better:
    """The configuration is to be replaced by that trial's. The evidence states the effect to expect."""

    number: int
    evidence: tuple[Comparison, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotDistinguishable:
    """The incumbent stays. ``cheapest`` is the finalist that takes the fewest seconds, None for the incumbent."""

    reason: str
    cheapest: int | None
    evidence: tuple[Comparison, ...]


Verdict: TypeAlias = LookAgain | Better | NotDistinguishable


def finalists(
    trials: Iterable[Trial], mode: Mode, incumbent: Params | None = None, rungs: Sequence[int] = ()
) -> tuple[Trial, ...]:
    """The best complete trials, other than the incumbent itself; the earlier of equals goes first.

    Where they are too few, as of a sweep that prunes, those that came furthest follow, each by what it was worth at the
    last of ``rungs`` that it reached. Nobody where none is complete: all others were found worse than the incumbent.
    """
    others = [trial for trial in trials if incumbent is None or key_of(trial.params) != key_of(incumbent)]
    finished = [
        trial
        for trial in others
        if trial.state is TrialState.COMPLETE and trial.value is not None and math.isfinite(trial.value)
    ]
    if not finished:
        return ()
    finished.sort(key=lambda t: (-score(t.value or 0.0, mode), t.number))
    behind = [(*merit, trial) for trial in others if (merit := _merit(trial, mode, rungs)) is not None]
    behind.sort(key=lambda each: (-each[0], -each[1], each[2].number))
    return tuple([*finished, *(trial for _, _, trial in behind)][:NUM_FINALISTS])


def _merit(trial: Trial, mode: Mode, rungs: Sequence[int]) -> tuple[int, float] | None:
    """The last rung that a pruned trial reached, and its score there; None where that says nothing."""
    line = max((rung for rung in rungs if rung <= trial.samples), default=None)
    if line is None or trial.state is not TrialState.PRUNED or not math.isfinite(trial.reports[-1].value):
        return None
    value = next(report.value for report in trial.reports if report.samples >= line)
    return (line, score(value, mode)) if math.isfinite(value) else None


def judge(incumbent: Runs, finalists: Mapping[int, Runs], mode: Mode, min_effect: float = MIN_EFFECT) -> Verdict:
    """What the runs so far say. The same runs always give the same verdict, so it can be asked after a restart.

    A finalist drops out at the first look at which it cannot be worth ``min_effect`` any more, or once a run of
    it has failed. ``min_effect`` is relative: 0.005 is half a percent of the incumbent's mean.
    """
    live = sorted(finalists)
    evidence: dict[int, Comparison] = {}
    for look in LOOKS:
        live = [number for number in live if None not in finalists[number].scores[:look]]
        if not live or None in incumbent.scores[:look]:
            whose = "the incumbent" if live else "every finalist"
            return _undecided(incumbent, finalists, evidence, f"a run of {whose} has failed")
        if any(len(runs.scores) < look for runs in (incumbent, *(finalists[number] for number in live))):
            return LookAgain(num_pairs=look, finalists=tuple(live))
        for number in live:
            evidence[number] = _compared(number, finalists[number].scores[:look], incumbent.scores[:look], mode)
        proven = _proven([evidence[number] for number in live], len(finalists)) if look > LOOKS[0] else []
        if worth := [comparison for comparison in proven if comparison.effect >= min_effect]:
            best = max(worth, key=lambda comparison: comparison.effect)
            return Better(number=best.number, evidence=tuple(evidence.values()))
        live = [number for number in live if evidence[number].high >= min_effect]
        if not live:
            told = f"after {look} pairs no finalist can be better by {min_effect:.2%}"
            return _undecided(incumbent, finalists, evidence, told)
    told = f"after {LOOKS[-1]} pairs no finalist is proven better by {min_effect:.2%}"
    return _undecided(incumbent, finalists, evidence, told)


def _undecided(
    incumbent: Runs, finalists: Mapping[int, Runs], evidence: Mapping[int, Comparison], reason: str
) -> NotDistinguishable:
    cheapest = min(finalists, key=lambda number: finalists[number].seconds, default=None)
    if cheapest is not None and finalists[cheapest].seconds >= incumbent.seconds:
        cheapest = None
    return NotDistinguishable(reason=reason, cheapest=cheapest, evidence=tuple(evidence.values()))


def _compared(number: int, ours: Sequence[float | None], theirs: Sequence[float | None], mode: Mode) -> Comparison:
    ours_P, theirs_P = (np.array(scores, dtype=np.float64) for scores in (ours, theirs))  # P: pairs
    sign = 1.0 if mode == "max" else -1.0
    gain_P = sign * (ours_P - theirs_P)
    scale = abs(float(theirs_P.mean())) or 1.0
    chance = np.random.default_rng(seed_of(number, len(gain_P)))
    means_R = chance.choice(gain_P, size=(_RESAMPLES, len(gain_P))).mean(axis=1) / scale  # R: resamples
    low, high = np.quantile(means_R, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return Comparison(
        number=number,
        num_pairs=len(gain_P),
        effect=float(gain_P.mean()) / scale,
        low=float(low),
        high=float(high),
        p_value=sign_flip_p(gain_P.tolist()),
        better_fraction=float(np.mean((gain_P > 0) + 0.5 * (gain_P == 0))),
    )


def _proven(comparisons: Sequence[Comparison], num_finalists: int) -> list[Comparison]:
    """Holm: the smallest p against the risk of this look over all finalists, the next over one less, and so on."""
    risk = RISK / (len(LOOKS) - 1)
    found: list[Comparison] = []
    for rank, comparison in enumerate(sorted(comparisons, key=lambda c: c.p_value)):
        if comparison.p_value > risk / (num_finalists - rank):
            break
        found.append(comparison)
    return found


def sign_flip_p(gains: Sequence[float]) -> float:
    """Chance of a sum as high as that of ``gains``, were each sign a coin's: exact, one-sided.

    All sums of one half of the gains meet all sums of the other, so that 20 pairs need 2,048 sums and not a million.
    """
    middle = len(gains) // 2
    left_L, right_R = (_sums(part) for part in (gains[:middle], gains[middle:]))
    right_R.sort()
    slack = 1e-12 * sum(map(abs, gains))
    num_below_L = np.searchsorted(right_R, sum(gains) - slack - left_L)
    return float((len(right_R) - num_below_L).sum()) / 2.0 ** len(gains)


def _sums(gains: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    sums = np.zeros(1)
    for gain in gains:
        sums = np.concatenate([sums + gain, sums - gain])
    return sums
