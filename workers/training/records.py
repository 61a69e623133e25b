"""Round records on their way to the store: kept until it has them, within a bound."""

from __future__ import annotations

from workers.status import RoundRecord

MAX_RECORDS = 20_000
MAX_PER_ANSWER = 1_000


class RecordBuffer:
    """Records by their natural key, oldest first; not safe for threads by itself."""

    def __init__(self, max_records: int = MAX_RECORDS) -> None:
        self._max_records = max_records
        self._records: dict[tuple[int, int], RoundRecord] = {}

    def __len__(self) -> int:
        return len(self._records)

    def keep(self, record: RoundRecord) -> int:
        """Take a record; one with the same key is replaced. Returns how many were thinned out to stay in bounds."""
        self._records[record.key] = record
        return self._thin() if len(self._records) > self._max_records else 0

    def forget(self, upto: tuple[int, int]) -> None:
        """Drop what the store has: every record up to this (lineage, round)."""
        while self._records and (key := next(iter(self._records))) <= upto:
            del self._records[key]

    def oldest(self) -> tuple[RoundRecord, ...]:
        """The oldest records, as many as fit into one answer."""
        if len(self._records) <= MAX_PER_ANSWER:
            return tuple(self._records.values())
        records = iter(self._records.values())
        return tuple(next(records) for _ in range(MAX_PER_ANSWER))

    def _thin(self) -> int:
        """Drop every second of the older half: a curve keeps its shape where all of it cannot be kept."""
        half = list(self._records)[: len(self._records) // 2]
        dropped = half[1::2]
        for key in dropped:
            del self._records[key]
        return len(dropped)
