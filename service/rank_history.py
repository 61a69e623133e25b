"""What the rounds of a job cost each rank over time, in a bounded number of pieces. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from workers.measures import RankSpan

MAX_TIMES = 400
"""Spans that a job keeps of one rank."""

NUM_FINE = 60
"""Of these the newest stay as they were told: they may still grow, or be told again."""

NUM_MERGED = 200
"""How many the older ones become when there are too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSpan:
    """A span and the attempt that told it; where attempts are merged, the last of them."""

    attempt: int
    span: RankSpan


def thinned(found: Iterable[AttemptSpan]) -> list[AttemptSpan]:
    """The same history in at most ``NUM_FINE + NUM_MERGED`` times: old spans are merged into wider ones.

    Sums stay sums, so no round is left out. A merged span bears the last of its workers and attempts.
    """
    spans = sorted(found, key=lambda s: (s.span.begin, s.attempt))
    begins = sorted({s.span.begin for s in spans})
    old = begins[:-NUM_FINE]
    width_s = min((s.span.width_s for s in spans), default=1)
    while len({begin // width_s for begin in old}) > NUM_MERGED:
        width_s *= 2
    first_fine = begins[len(old)] if len(begins) > len(old) else 0
    merged: dict[tuple[int, int], AttemptSpan] = {}
    for each in spans:
        if each.span.begin < first_fine:
            wider = replace(
                each.span,
                begin=each.span.begin // width_s * width_s,
                width_s=max(each.span.width_s, width_s),
            )
            key = (wider.rank, wider.begin)
            known = merged.get(key)
            merged[key] = AttemptSpan(attempt=each.attempt, span=wider if known is None else total([known.span, wider]))
    return [*merged.values(), *(s for s in spans if s.span.begin >= first_fine)]


def total(spans: Sequence[RankSpan]) -> RankSpan:
    """Spans of one rank as one, which begins with the first and bears the last's worker; there is at least one."""
    num_rounds = sum(s.num_rounds for s in spans)
    measured = [s for s in spans if s.gpu_utilisation is not None]
    gpu = sum((s.gpu_utilisation or 0.0) * s.num_rounds for s in measured)
    return replace(
        spans[-1],
        begin=spans[0].begin,
        width_s=max(s.begin + s.width_s for s in spans) - spans[0].begin,
        num_rounds=num_rounds,
        step_s=sum(s.step_s for s in spans),
        data_s=sum(s.data_s for s in spans),
        compute_s=sum(s.compute_s for s in spans),
        exposed_s=sum(s.exposed_s for s in spans),
        optimizer_s=sum(s.optimizer_s for s in spans),
        memory_bytes=max(s.memory_bytes for s in spans),
        gpu_utilisation=gpu / sum(s.num_rounds for s in measured) if measured else None,
    )
