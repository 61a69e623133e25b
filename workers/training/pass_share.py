"""What a forward pass costs beside its tokens: many passes with little padding, or few with more, found by trying.

On a CPU time goes with the tokens; a GPU takes as long for a small pass as for a large one. A larger share is tried in
turns with the one in force, in rounds that count like all others: what is in a step stays the same however its samples
are cut into passes. Pure: the clock is read by whoever calls.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from workers.measures import Compared, compared
from workers.training.by_length import PASS_SHARE

SHARES = (PASS_SHARE, 1 / 8, 1.0)
"""Of the largest pass that there may be; the last one makes as few passes as fit."""

NUM_PAIRS = 3
"""Rounds of each that are compared, after a first one in which libraries set themselves up."""

WORTH = 1.25
"""So many times as fast must a token be: a busy machine makes smaller differences, and padding is work as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassChoice:
    """Passes of up to ``after`` padded tokens in place of ``before``, why, and what a token took in both.

    ``cost_s`` are the seconds by which the rounds of the trial were longer than by ``after``.
    """

    before: int
    after: int
    reason: str
    compared: Compared | None
    cost_s: float


@dataclass(slots=True)
class _Seen:
    """Of one share: seconds a token by round, and the largest pass."""

    seconds: list[float] = field(default_factory=list)
    largest: int = 0


class PassShare:
    """The share in force; larger ones are tried while each is faster than the one before.

    ``max_tokens`` is what a pass may have; None where nobody knows yet what fits, and nothing is tried before.
    """

    def __init__(self, max_tokens: int | None) -> None:
        self._is_given = max_tokens is not None
        self._begin(max_tokens)

    def _begin(self, max_tokens: int | None) -> None:
        self.max_tokens = max_tokens
        self._best = SHARES[0]
        self._seen = {share: _Seen() for share in SHARES}
        self._coming = deque([(SHARES[0], False)])  # of each round its share, and whether it counts
        self._trial_s, self._trial_tokens = 0.0, 0
        if max_tokens is not None:
            self._try(SHARES[1])

    def again(self) -> None:
        """What a pass takes has changed: what was found to fit may fit no more."""
        if not self._is_given:
            self._begin(None)

    def allow(self, max_tokens: int) -> None:
        """So many tokens fit into a pass, which was not known before: begin to try."""
        self.max_tokens = max_tokens
        self._try(SHARES[1])

    @property
    def is_trying(self) -> bool:
        """Whether the coming round is one of those that are compared, or before them."""
        return self.max_tokens is not None and bool(self._coming)

    @property
    def share(self) -> float:
        """That of the coming round."""
        return self._coming[0][0] if self._coming else self._best

    def measured(self, tokens: int, largest: int, seconds: float) -> PassChoice | None:
        """Take a round of this rank: its tokens without padding, its largest pass with it. A choice of a larger share.

        After that the next larger is tried.
        """
        share, counts = self._coming.popleft()
        seen = self._seen[share]
        if counts or share != self._best:
            self._trial_s, self._trial_tokens = self._trial_s + seconds, self._trial_tokens + tokens
        if counts and tokens > 0 and seconds > 0.0:
            seen.seconds.append(seconds / tokens)
            seen.largest = max(seen.largest, largest)
        if self._coming:
            return None
        return self._judged(SHARES[SHARES.index(self._best) + 1])

    def _try(self, share: float) -> None:
        self._seen[self._best].seconds.clear()
        self._trial_s, self._trial_tokens = 0.0, 0
        self._coming += [(share, False), *[(self._best, True), (share, True)] * NUM_PAIRS]

    def _judged(self, share: float) -> PassChoice | None:
        """The choice of ``share`` where a token is that much faster by it than by the one in force."""
        old, new = self._seen[self._best], self._seen[share]
        told = compared("token", old.seconds, new.seconds)
        if told is None or told.before_s < WORTH * told.after_s:
            return None
        cost_s = max(0.0, self._trial_s - self._trial_tokens * told.after_s)
        self._best = share
        if share != SHARES[-1]:
            self._try(SHARES[SHARES.index(share) + 1])
        gain = told.before_s / told.after_s
        reason = f"in fewer passes, of up to {new.largest} padded tokens, a token is {gain:.2g} times as fast"
        return PassChoice(before=old.largest, after=new.largest, reason=reason, compared=told, cost_s=cost_s)
