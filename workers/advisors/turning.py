"""Whether a change of what travels paid, told apart from a link that changed meanwhile: by turning back once. Pure."""

from __future__ import annotations

from math import sqrt

from workers.advisors.judging import MAX_JUDGE_STEPS, Rate, Verdict

ALIKE = 0.01
"""Stretches that differ by less are alike, however little noise there is."""

LARGE_GAIN = 2.5
LEAST_FORESEEN, MOST_FORESEEN = 0.8, 2.0
"""A gain that is so much of what was foreseen is as foreseen. Over real links of 50 to 200 Mbit it was up to 1.6 times
that, as part of what they take is counted as latency."""


def is_sure(verdict: Verdict, expected_gain: float, *, is_link_faster: bool) -> bool:
    """Whether a gain may be believed without turning back to what was before.

    Where it is large and as foreseen, and the link is not seen to be faster (for as many bytes) than it was: to be
    wrong of such a one a link would have to become ``LARGE_GAIN`` times as fast within some ten steps, and by just what
    another scheme was to bring. It is there that steps by what was before cost most. What is to be taken back needs no
    such rule: it turns back anyway.
    """
    is_foreseen = LEAST_FORESEEN * expected_gain <= verdict.gain <= MOST_FORESEEN * expected_gain
    return verdict.is_kept and verdict.gain >= LARGE_GAIN and is_foreseen and not is_link_faster


def judge_between(before: Rate, now: Rate, again: Rate, least_gain: float) -> Verdict | None:
    """What a change brought that was measured between two stretches without it; None where they leave it open.

    Where those differ by no more than their noise, by the mean of both. Else something changed, nobody knows when: it
    is judged where it is worth as much, or as little, over either.
    """
    least, most = _gains(before, now, again)
    if least < least_gain <= most:
        return None
    return Verdict(gain=sqrt(least * most), is_kept=least >= least_gain)


def is_open(before: Rate, now: Rate, again: Rate, least_gain: float) -> bool:
    """Whether more steps without the change may still turn the verdict."""
    least, most = _gains(before, now, again)
    doubt = _doubt(now, before, again)
    return again.num_steps < MAX_JUDGE_STEPS and least * (1.0 - doubt) < least_gain <= most * (1.0 + doubt)


def is_proven(before: Rate, now: Rate, again: Rate, least_gain: float) -> bool:
    """Whether a gain is at least that much beyond the noise of steps: what loses more is not to come by chance."""
    return _gains(before, now, again)[0] * (1.0 - _doubt(now, before, again)) >= least_gain


def _gains(before: Rate, now: Rate, again: Rate) -> tuple[float, float]:
    slow, fast = sorted((before.samples_per_s, again.samples_per_s))
    if fast <= slow * (1.0 + max(ALIKE, 2.0 * sqrt(before.error**2 + again.error**2))):
        slow = fast = sqrt(slow * fast)
    return now.samples_per_s / fast, now.samples_per_s / slow


def _doubt(now: Rate, *without: Rate) -> float:
    """Two standard errors of the gain over the mean of steps without the change."""
    return 2.0 * sqrt(now.error**2 + sum(rate.error**2 for rate in without) / len(without) ** 2)


def drift_in_words(before: Rate, again: Rate) -> str:
    """``1.43 times as fast``, by what was the same before and after."""
    ratio = again.samples_per_s / before.samples_per_s
    return f"{ratio:.2f} times as fast" if ratio >= 1.0 else f"{1.0 / ratio:.2f} times as slow"
