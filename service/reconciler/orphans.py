"""What nobody owns any more: named twice, some time apart, before it is removed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from service.records import JobRow
from service.states import PLACED_STATES
from workers.control.names import ControllerName, WorkerName, parse_name

PATIENCE_S = 30.0


def orphaned_actors(names: Iterable[str], rows: Mapping[str, JobRow]) -> set[str]:
    """Controllers and workers of attempts that are not under way, and controllers of past terms.

    ``rows`` are the live jobs by id, read after the names.
    """
    found = set()
    for name in names:
        parsed = parse_name(name)
        if parsed is None:
            continue
        row = rows.get(parsed.key.job_id)
        is_placed = row is not None and row.state in PLACED_STATES and row.attempt == parsed.key.attempt
        if not is_placed or _is_past(parsed, row):
            found.add(name)
    return found


def _is_past(parsed: ControllerName | WorkerName, row: JobRow | None) -> bool:
    return isinstance(parsed, ControllerName) and row is not None and parsed.term < row.term


class Suspects:
    """Remembers since when each thing has been seen without an owner, at every look."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}

    def ripe(self, seen: Collection[str], now_s: float) -> list[str]:
        """Of what was seen without an owner now, what was also seen so at the looks of the last PATIENCE_S."""
        self._since_s = {name: self._since_s.get(name, now_s) for name in seen}
        return [name for name, since_s in self._since_s.items() if now_s - since_s >= PATIENCE_S]
