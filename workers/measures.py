"""What a worker measures of its own work: what rounds and parts cost it, and which forward passes it settled on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from workers.plan import PlanId


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpan:
    """What the rounds of ``width_s`` seconds cost one worker under one rank; ``begin`` is Unix seconds.

    Seconds are sums over its ``num_rounds`` committed rounds: ``step_s`` from commit to commit, the others this
    worker's own parts of it. ``memory_bytes`` is the most seen, ``gpu_utilisation`` the mean of the rounds.
    A span grows until its time is over; the one with more rounds replaces the other.
    """

    worker_id: str
    rank: int
    begin: int
    width_s: int
    num_rounds: int
    step_s: float
    data_s: float
    compute_s: float
    exposed_s: float
    optimizer_s: float
    memory_bytes: int
    gpu_utilisation: float | None = None

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.worker_id, self.rank, self.begin)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoad:
    """A run of rounds in which one worker had the same part: what such a part costs it by itself.

    ``n`` counts a worker's runs from 1. ``samples`` is its part of a round, ``seconds`` the median of ``num_rounds``
    committed rounds: fetching and computing, without waits for others.
    """

    n: int
    plan_id: PlanId
    samples: int
    num_rounds: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroChange:
    """From ``time`` on a worker's forward passes have ``after`` samples: as memory ran out, or as it is faster.

    ``n`` counts a worker's changes; ``before`` is None where it is the first that was settled on. Sizes are in samples,
    or in padded tokens where that is the ``unit``. ``seconds`` a sample by size, as far as they were measured.
    """

    n: int
    before: int | None
    after: int
    reason: str
    time: float
    unit: str = "samples"
    seconds: Mapping[int, float] = field(default_factory=dict)
