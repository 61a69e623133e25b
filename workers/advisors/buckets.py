"""How gradients in buckets leave a backward pass, and what the link still carries when that is over. Pure; seconds.

A pipeline of two stages (as in MG-WFBP, arXiv 1811.11141): a bucket leaves when all of it is there and the link is
free. Backward is taken to make gradients at an even pace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BUCKET_S = 0.002
"""What one bucket more takes of the cores that compute: a collective of its own."""


def left_s(shares: Sequence[float], carried_s: Sequence[float], backward_s: float) -> float:
    """What the link takes after the backward pass; ``carried_s`` is what each bucket takes, in their order."""
    is_there_s = ends_s = 0.0
    for share, carries_s in zip(shares, carried_s, strict=True):
        is_there_s += share * backward_s
        ends_s = max(ends_s, is_there_s) + carries_s
    return ends_s - backward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """Buckets of an exchange: ``coded_s`` is what the link takes of all of them as they are encoded, in ``num_hops``.

    The first ``num_dense`` go in one hop as they are; all that went so would take ``dense_s``. Where they are
    ``relayed``, hops but the first of a bucket begin when the bucket after it has left, those of the last when that
    has come; else all of these when backward is over.
    """

    shares: Sequence[float]
    coded_s: float
    num_hops: int = 1
    num_dense: int = 0
    dense_s: float = 0.0
    relayed: bool = True

    def waited_s(self, backward_s: float) -> float:
        """What is waited for."""
        return left_s(self.shares, [self._sent_s(n) for n in range(len(self.shares))], backward_s) + self._ending_s

    @property
    def least_s(self) -> float:
        """What is waited for however long backward is: the last bucket, and what goes when that has left."""
        return self._sent_s(len(self.shares) - 1) + self._ending_s

    @property
    def cores_s(self) -> float:
        """What as many collectives take of the cores that compute."""
        return (self.num_dense + (len(self.shares) - self.num_dense) * self.num_hops) * BUCKET_S

    @property
    def _ending_s(self) -> float:
        last = len(self.shares) - 1
        return sum(self._later_s(number) for number in range(last if self.relayed else 0, last + 1))

    def _sent_s(self, number: int) -> float:
        """What the link takes from the time when a bucket leaves: its first hop, and the later ones of that before."""
        before_s = self._later_s(number - 1) if self.relayed and number > 0 else 0.0
        return before_s + self.shares[number] * (
            self.dense_s if number < self.num_dense else self.coded_s / self.num_hops
        )

    def _later_s(self, number: int) -> float:
        return 0.0 if number < self.num_dense else self.shares[number] * self.coded_s * (1.0 - 1.0 / self.num_hops)


def exposed_s(known_s: float, before: Leaving, after: Leaving, backward_s: float) -> float:
    """What is waited for in buckets ``after``, where it is ``known_s`` in buckets ``before``.

    What the model does not know of the one it does not know of the other either. What fewer collectives give back of
    the cores is not counted on.
    """
    gained_s = before.waited_s(backward_s) - after.waited_s(backward_s)
    return max(known_s - gained_s, after.least_s) + max(0.0, after.cores_s - before.cores_s)
