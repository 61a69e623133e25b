"""What the rounds of the sample's jobs cost each rank: the last one is slow to load its data for a while."""

from __future__ import annotations

import random
from collections.abc import Sequence

from service.rank_history import total
from workers.measures import RankSpan
from workers.status import RoundRecord

SPAN_S = 5


def rank_spans(records: Sequence[RoundRecord], num_steps: int) -> tuple[RankSpan, ...]:
    """Spans that fit to the records of a job of ``num_steps`` steps."""
    chance = random.Random(0)
    grouped: dict[tuple[str, int, int], list[RankSpan]] = {}
    for record in records:
        for span in _of_round(record, 0.3 < record.round / num_steps < 0.4, chance):
            grouped.setdefault(span.key, []).append(span)
    return tuple(total(group) for group in grouped.values())


def _of_round(record: RoundRecord, is_slow: bool, chance: random.Random) -> list[RankSpan]:
    step_s, workers = record.values["step_s"], int(record.values["workers"])
    return [
        RankSpan(
            worker_id=f"1.{rank + 1}",
            rank=rank,
            begin=int(record.time) // SPAN_S * SPAN_S,
            width_s=SPAN_S,
            num_rounds=1,
            step_s=step_s,
            data_s=step_s * (0.18 if is_slow and rank == workers - 1 > 0 else 0.06),
            compute_s=step_s * (0.66 + 0.03 * rank) * chance.uniform(0.95, 1.05),
            exposed_s=step_s * (0.16 - 0.03 * rank),
            optimizer_s=step_s * 0.08,
            memory_bytes=int(record.values["memory_bytes"]) + 3_000_000 * rank,
        )
        for rank in range(workers)
    ]
