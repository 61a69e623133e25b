"""What a micro-batch of samples of unequal lengths takes up, and how much of it there may be. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The most tokens and samples of a micro-batch; None where there is no such bound.

    Each sample is padded to the longest, which are tokens as well; not where they are laid end to end: ``is_packed``.
    """

    max_tokens: int | None = None
    max_samples: int | None = None
    is_packed: bool = False

    @property
    def unit(self) -> str:
        """What ``taken`` counts."""
        return "tokens" if self.is_packed else "padded tokens"

    def taken(self, lengths_M: NDArray[np.int64]) -> int:
        """What a micro-batch of samples with these lengths takes up."""
        return int(lengths_M.sum()) if self.is_packed else padded(lengths_M)

    def fitting(self, lengths_M: NDArray[np.int64]) -> int:
        """How many of the first of these go into one micro-batch; at least 1."""
        num_samples = len(lengths_M)
        if self.max_tokens is not None:
            counts_M = np.arange(1, num_samples + 1)
            taken_M = np.cumsum(lengths_M) if self.is_packed else counts_M * np.maximum.accumulate(lengths_M)
            num_samples = int(np.searchsorted(taken_M, self.max_tokens, side="right"))
        if self.max_samples is not None:
            num_samples = min(num_samples, self.max_samples)
        return max(1, num_samples)


def padded(lengths_M: NDArray[np.int64]) -> int:
    """Tokens of samples with these lengths, each padded to the longest."""
    return len(lengths_M) * int(lengths_M.max(initial=0))
