"""Whether a sweep's winner is better than what is in use: paired runs on fresh, shared seeds. Pure.

The best of many noisy trials looks better than it is (of 32 equal ones by two standard deviations), so the
sweep's own value decides nothing. The finalists and the incumbent run with the same new seeds, and their
differences are tested by exact sign flips: if a finalist were no better, each difference could as well have had
the other sign. Four looks and up to three finalists share one risk of 5 % (Bonferroni over looks, Holm 1979
over finalists).

Of what cannot be told apart the cheaper is used. So a finalist replaces the incumbent also where it is proven not to be
worse by what would count as better, and to be cheaper, at a risk of 5 % of its own. On average it must be as good
besides: else night after night each would be a little worse than the one before. Sign flips take differences for
symmetric: who is worse with few seeds only, and much, may be taken for as good (simulated: worse by a third with one
seed in ten in 18 to 39 % of comparisons).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
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
MIN_SAVING = 0.05
"""Relative to what a run of the incumbent costs."""

_CONFIDENCE = 0.9
_RESAMPLES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What one configuration reached, by seed in the order of the seeds; None where a run failed.

    ``costs`` are of the same runs, in a unit that all contenders share; empty where there is none.
    """

    scores: tuple[float | None, ...] = ()
    costs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A finalist against the incumbent. Effects are relative to the incumbent's mean; above 0 is better.

    ``low`` to ``high`` holds the true effect with 90 % (bootstrap). ``p_value`` is one-sided. ``better_fraction``
    is the share of pairs that the finalist won, ties by half. ``saving`` is the share of the incumbent's cost that it
    saves, and ``cheaper_p_value`` the chance of looking so if it were worse by ``min_effect``, or did not save
    ``MIN_SAVING``; None where costs cannot be compared.
    """

    number: int
    num_pairs: int
    effect: float
    low: float
    high: float
    p_value: float
    better_fraction: float
    saving: float | None
    cheaper_p_value: float | None

    @property
    def may_replace_as_cheaper(self) -> bool:
        """Whether it looks as good, and as if it saved enough."""
        return self.effect >= 0.0 and self.saving is not None and self.saving >= MIN_SAVING


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
class Cheaper:
    """Nobody is better, for that ``reason``; the configuration is to be replaced by that trial's, which costs less."""

    number: int
    reason: str
    evidence: tuple[Comparison, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotDistinguishable:
    """The incumbent stays."""

    reason: str
    evidence: tuple[Comparison, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incomparable:
    """The incumbent stays, as runs failed that would have told whether anybody is better."""

    reason: str
    evidence: tuple[Comparison, ...]


Verdict: TypeAlias = LookAgain | Better | Cheaper | NotDistinguishable | Incomparable


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

    A finalist drops out at the first look at which it can neither be worth ``min_effect`` any more nor looks as good
    and cheaper, or once a run of it has failed. ``min_effect`` is relative: 0.005 is half a percent of the incumbent's
    mean. A cheaper one is taken once nobody can be better.
    """
    live = sorted(finalists)
    evidence: dict[int, Comparison] = {}
    for look in LOOKS:
        live = [number for number in live if None not in finalists[number].scores[:look]]
        if not live or None in incumbent.scores[:look]:
            return _broken_off(incumbent.scores[:look], finalists, evidence)
        if any(len(runs.scores) < look for runs in (incumbent, *(finalists[number] for number in live))):
            return LookAgain(num_pairs=look, finalists=tuple(live))
        theirs = _first(look, incumbent)
        seen = [_compared(number, _first(look, finalists[number]), theirs, mode, min_effect) for number in live]
        evidence |= {comparison.number: comparison for comparison in seen}
        known = tuple(evidence.values())
        if look > LOOKS[0] and (found := _best(seen, len(finalists), min_effect)) is not None:
            return Better(number=found.number, evidence=known)
        hopeful = {comparison.number for comparison in seen if comparison.high >= min_effect}
        cheaper = {comparison.number for comparison in seen if comparison.may_replace_as_cheaper}
        told = "" if hopeful else f"no finalist can be better by {min_effect:.2%}"
        if look == LOOKS[-1]:
            told = told or f"no finalist is proven better by {min_effect:.2%}"
        if look > LOOKS[0] and told and (found := _cheapest(seen, len(finalists))) is not None:
            return Cheaper(number=found.number, reason=f"after {look} pairs {told}", evidence=known)
        live = sorted(hopeful | cheaper)
        if not live or look == LOOKS[-1]:
            told += f", nor proven as good and {MIN_SAVING:.0%} cheaper" if cheaper else ""
            return NotDistinguishable(reason=f"after {look} pairs {told}", evidence=known)
    raise AssertionError("the last look decides")


def _broken_off(
    incumbent: Sequence[float | None], finalists: Mapping[int, Runs], evidence: Mapping[int, Comparison]
) -> NotDistinguishable | Incomparable:
    """Nobody is left to compare; whoever dropped out before had been found no better."""
    known = tuple(evidence.values())
    if None in incumbent:
        return Incomparable(reason="a run of the incumbent has failed", evidence=known)
    if all(None in runs.scores for runs in finalists.values()):
        return Incomparable(reason="a run of every finalist has failed", evidence=known)
    return NotDistinguishable(reason="a run of each finalist that could be better has failed", evidence=known)


def _first(look: int, runs: Runs) -> Runs:
    return Runs(scores=runs.scores[:look], costs=runs.costs[:look])


def _compared(number: int, ours: Runs, theirs: Runs, mode: Mode, min_effect: float) -> Comparison:
    ours_P, theirs_P = (np.array(runs.scores, dtype=np.float64) for runs in (ours, theirs))  # P: pairs
    sign = 1.0 if mode == "max" else -1.0
    gain_P = sign * (ours_P - theirs_P)
    scale = abs(float(theirs_P.mean())) or 1.0
    chance = np.random.default_rng(seed_of(number, len(gain_P)))
    means_R = chance.choice(gain_P, size=(_RESAMPLES, len(gain_P))).mean(axis=1) / scale  # R: resamples
    low, high = np.quantile(means_R, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    saving, cheaper_p_value = _saved(ours.costs, theirs.costs)
    if cheaper_p_value is not None:
        cheaper_p_value = max(cheaper_p_value, sign_flip_p((gain_P + min_effect * scale).tolist()))
    return Comparison(
        number=number,
        num_pairs=len(gain_P),
        effect=float(gain_P.mean()) / scale,
        low=float(low),
        high=float(high),
        p_value=sign_flip_p(gain_P.tolist()),
        better_fraction=float(np.mean((gain_P > 0) + 0.5 * (gain_P == 0))),
        saving=saving,
        cheaper_p_value=cheaper_p_value,
    )


def _saved(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float | None, float | None]:
    """The share of their costs that is saved, and the chance of that if it were ``MIN_SAVING``."""
    whole = fmean(theirs) if ours and theirs else 0.0
    if whole <= 0.0:
        return None, None
    saved = [their - our for our, their in zip(ours, theirs, strict=True)]
    return fmean(saved) / whole, sign_flip_p([each - MIN_SAVING * whole for each in saved])


def _best(seen: Sequence[Comparison], num_finalists: int, min_effect: float) -> Comparison | None:
    """The best of those that are proven better, and by enough."""
    proven = _proven([(comparison.p_value, comparison) for comparison in seen], num_finalists)
    worth = [comparison for comparison in proven if comparison.effect >= min_effect]
    return max(worth, key=lambda comparison: comparison.effect, default=None)


def _cheapest(seen: Sequence[Comparison], num_finalists: int) -> Comparison | None:
    """The one that saves most of those that are proven as good and cheaper."""
    known = [(c.cheaper_p_value, c) for c in seen if c.cheaper_p_value is not None]
    worth = [comparison for comparison in _proven(known, num_finalists) if comparison.may_replace_as_cheaper]
    return max(worth, key=lambda comparison: comparison.saving or 0.0, default=None)


def _proven(comparisons: Sequence[tuple[float, Comparison]], num_finalists: int) -> list[Comparison]:
    """Holm: the smallest p against the risk of this look over all finalists, the next over one less, and so on."""
    risk = RISK / (len(LOOKS) - 1)
    found: list[Comparison] = []
    for rank, (p_value, comparison) in enumerate(sorted(comparisons, key=lambda each: each[0])):
        if p_value > risk / (num_finalists - rank):
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
