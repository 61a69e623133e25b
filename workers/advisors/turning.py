"""Whether a change of what travels paid, told apart from a link that changed meanwhile: by turning back once. Pure."""

from __future__ import annotations

from math import sqrt

from workers.advisors.judging import Rate, Verdict

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
    slow, fast = sorted((before.samples_per_s, again.samples_per_s))
    if fast <= slow * (1.0 + 2.0 * sqrt(before.error**2 + again.error**2)):
        slow = fast = sqrt(slow * fast)
    least, most = now.samples_per_s / fast, now.samples_per_s / slow
    if least < least_gain <= most:
        return None
    return Verdict(gain=sqrt(least * most), is_kept=least >= least_gain)


def drift_in_words(before: Rate, again: Rate) -> str:
    """``1.43 times as fast``, by what was the same before and after."""
    ratio = again.samples_per_s / before.samples_per_s
    return f"{ratio:.2f} times as fast" if ratio >= 1.0 else f"{1.0 / ratio:.2f} times as slow"
