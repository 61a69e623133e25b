"""Round records on their way to the store: kept until it has them, within a bound."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from workers.status import RoundRecord

MAX_RECORDS = 20_000
MAX_PER_ANSWER = 1_000


@dataclass(frozen=True, slots=True)
class Untold:
    """What the store has not yet, as it travels with the state to members that did not see those rounds.

    ``held`` is the record that waits for its evaluation.
    """

    records: tuple[RoundRecord, ...]
    held: RoundRecord | None


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

    def merge(self, records: Iterable[RoundRecord]) -> None:
        """Take what another member has to tell; of two records with one key the higher generation's stays."""
        for record in records:
            known = self._records.get(record.key)
            if known is None or record.generation >= known.generation:
                self._records[record.key] = record
        self._records = dict(sorted(self._records.items()))

    def all(self) -> tuple[RoundRecord, ...]:
        """Every record, oldest first."""
        return tuple(self._records.values())

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
