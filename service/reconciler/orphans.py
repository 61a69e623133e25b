"""What nobody owns any more: named twice, some time apart, before it is removed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from service.records import JobRow
from service.states import PLACED_STATES
from service.sweep_records import SweepRow, SweepState
from workers.assignment import SWEEP_LABEL
from workers.control.names import ControllerName, SweepName, WorkerName, parse_name, parse_pool, parse_sweep

PATIENCE_S = 30.0


def orphaned_actors(names: Iterable[str], rows: Mapping[str, JobRow], sweeps: Mapping[str, SweepRow]) -> set[str]:
    """Controllers and workers of attempts that are not under way, and controllers of past terms.

    ``rows`` are the live jobs by id, ``sweeps`` the live sweeps, both read after the names.
    """
    found = set()
    for name in names:
        if (pool_of := parse_pool(name)) is not None:
            found |= {name} if pool_of not in sweeps else set()
            continue
        if (of_sweep := parse_sweep(name)) is not None:
            if not _is_in_office(of_sweep, sweeps, rows):
                found.add(name)
            continue
        parsed = parse_name(name)
        if parsed is None:
            continue
        row = rows.get(parsed.key.job_id)
        is_placed = row is not None and row.state in PLACED_STATES and row.attempt == parsed.key.attempt
        if not is_placed or _is_past(parsed, row):
            found.add(name)
    return found


def _is_in_office(name: SweepName, sweeps: Mapping[str, SweepRow], rows: Mapping[str, JobRow]) -> bool:
    """A sweep that runs needs its controller, and so do the trials that end."""
    sweep = sweeps.get(name.sweep_id)
    if sweep is None or name.term < sweep.term:
        return False
    trials = (row for row in rows.values() if row.spec.labels.get(SWEEP_LABEL) == sweep.id)
    return sweep.state is SweepState.RUNNING or any(row.state in PLACED_STATES for row in trials)


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
