"""What parts of the batch cost this worker by itself, in runs of equal rounds: shares by speed are found from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from workers.measures import RankLoad
from workers.plan import PlanId

LEAST_ROUNDS = 3
"""The median of so many passes over one that was slow by accident."""

LEAST_S = 0.5
MOST_ROUNDS = 1_000
NUM_TOLD = 6
"""Runs told with every poll: the last three seconds at least, so that a poll or two may be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCost:
    """One committed round: this worker's part in samples, and the seconds that it took without waits for others.

    ``exchange_s``, ``exposed_s``, ``wire_s``, ``backward_s`` and ``codec_s`` are those of ``RankLoad``.

    Of a batch that is dealt by length the part is the worker's share of it, as the plan has it: tokens come in that
    proportion, and how many samples they are changes with every step. ``tokens`` are those of the samples drawn, 0
    where they have no lengths.
    """

    plan_id: PlanId
    samples: int
    seconds: float
    tokens: float = 0.0
    exchange_s: float = 0.0
    exposed_s: float = 0.0
    wire_s: float | None = None
    backward_s: float | None = None
    codec_s: float | None = None


class Loads:
    """The newest runs of one worker; not safe for threads by itself."""

    def __init__(self) -> None:
        self._told: deque[RankLoad] = deque(maxlen=NUM_TOLD)
        self._n = 0
        self._run: list[OwnCost] = []
        self._run_s = 0.0

    def add(self, cost: OwnCost, step_s: float) -> None:
        """Count a round; ``step_s`` is what it took from commit to commit. A run that others cut short is not told."""
        if self._run and (self._run[0].plan_id, self._run[0].samples) != (cost.plan_id, cost.samples):
            self._run, self._run_s = [], 0.0
        self._run.append(cost)
        self._run_s += step_s
        num_rounds = len(self._run)
        if (num_rounds < LEAST_ROUNDS or self._run_s < LEAST_S) and num_rounds < MOST_ROUNDS:
            return
        self._n += 1
        tokens = fmean(one.tokens for one in self._run)
        load = RankLoad(
            n=self._n,
            plan_id=cost.plan_id,
            samples=cost.samples,
            num_rounds=num_rounds,
            seconds=_seconds(self._run, tokens),
            tokens=tokens,
            exchange_s=median(one.exchange_s for one in self._run),
            exposed_s=median(one.exposed_s for one in self._run),
            wire_s=_known(one.wire_s for one in self._run),
            backward_s=_known(one.backward_s for one in self._run),
            codec_s=_known(one.codec_s for one in self._run),
        )
        self._told.append(load)
        self._run, self._run_s = [], 0.0

    def newest(self) -> tuple[RankLoad, ...]:
        """The runs that are kept, oldest first."""
        return tuple(self._told)


def _seconds(run: Sequence[OwnCost], tokens: float) -> float:
    """The median round's; of rounds that differ in length, what the median token's are for so many ``tokens``."""
    if tokens == 0:
        return median(one.seconds for one in run)
    return tokens * median(one.seconds / one.tokens for one in run if one.tokens > 0)


def _known(seconds: Iterable[float | None]) -> float | None:
    """The median of those that were seen."""
    seen = [one for one in seconds if one is not None]
    return median(seen) if seen else None
