"""What this worker's rounds cost it, summed over short spans of time: a row of the page's heat map."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from workers.measures import RankSpan

SPAN_S = 5
NUM_TOLD = 6
"""Spans of the newest half minute are told with every poll, so that a controller's death loses none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCost:
    """One round on this rank: seconds by the names of ``RankSpan``, and what its device told last."""

    step_s: float
    data_s: float
    compute_s: float
    exposed_s: float
    optimizer_s: float
    memory_bytes: int
    gpu_utilisation: float | None


class Spans:
    """The newest spans of one worker; not safe for threads by itself."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._spans: deque[RankSpan] = deque(maxlen=NUM_TOLD)

    def add(self, rank: int, unix_s: float, cost: RoundCost) -> None:
        """Count a round that was committed at ``unix_s``."""
        begin = int(unix_s) // SPAN_S * SPAN_S
        last = self._spans[-1] if self._spans else None
        if last is not None and (last.rank, last.begin) == (rank, begin):
            self._spans[-1] = _grown(last, cost)
        elif last is None or begin >= last.begin:  # a clock that was set back tells nothing until it has caught up
            self._spans.append(_first(self._worker_id, rank, begin, cost))

    def newest(self) -> tuple[RankSpan, ...]:
        """The spans that are kept, oldest first; the last may still grow."""
        return tuple(self._spans)


def _first(worker_id: str, rank: int, begin: int, cost: RoundCost) -> RankSpan:
    return RankSpan(
        worker_id=worker_id,
        rank=rank,
        begin=begin,
        width_s=SPAN_S,
        num_rounds=1,
        step_s=cost.step_s,
        data_s=cost.data_s,
        compute_s=cost.compute_s,
        exposed_s=cost.exposed_s,
        optimizer_s=cost.optimizer_s,
        memory_bytes=cost.memory_bytes,
        gpu_utilisation=cost.gpu_utilisation,
    )


def _grown(span: RankSpan, cost: RoundCost) -> RankSpan:
    num, gpu = span.num_rounds, cost.gpu_utilisation
    if gpu is not None and span.gpu_utilisation is not None:
        gpu = (span.gpu_utilisation * num + gpu) / (num + 1)
    return replace(
        span,
        num_rounds=num + 1,
        step_s=span.step_s + cost.step_s,
        data_s=span.data_s + cost.data_s,
        compute_s=span.compute_s + cost.compute_s,
        exposed_s=span.exposed_s + cost.exposed_s,
        optimizer_s=span.optimizer_s + cost.optimizer_s,
        memory_bytes=max(span.memory_bytes, cost.memory_bytes),
        gpu_utilisation=span.gpu_utilisation if gpu is None else gpu,
    )
