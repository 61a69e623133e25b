"""Round records on their way to the store: kept until it has them, within a bound."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from workers.status import RoundRecord
from workers.telemetry_keys import PREFIXES_OF_CODE

MAX_RECORDS = 20_000
MAX_PER_ANSWER = 1_000
MAX_NAMES = 64
"""Of the user's own values in all of a worker's records, those of training and of evaluation together."""

RECORDS_REASON = f"{MAX_RECORDS:,} records of steps waited for the service; every second of the oldest is left out"
NAMES_REASON = (
    f"the job's code returned more than {MAX_NAMES} names of values in all; the first {MAX_NAMES} are kept; "
    "return the same few names every time"
)


@dataclass(frozen=True, slots=True)
class Untold:
    """What the store has not yet, as it travels with the state to members that did not see those rounds.

    ``held`` is the record that waits for its evaluation.
    """

    records: tuple[RoundRecord, ...]
    held: RoundRecord | None


class NameBound:
    """Lets the first names through that it sees: each is a key that charts, lists and queries carry from then on."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def bounded(self, record: RoundRecord) -> RoundRecord:
        """The record without values of names past the bound; itself where there is none."""
        over = [name for name in record.values if name.startswith(PREFIXES_OF_CODE) and not self._admit(name)]
        if not over:
            return record
        return replace(record, values={n: v for n, v in record.values.items() if n not in over})

    def _admit(self, name: str) -> bool:
        if name not in self._known and len(self._known) < MAX_NAMES:
            self._known.add(name)
        return name in self._known


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
