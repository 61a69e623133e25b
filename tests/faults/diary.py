"""What workers noted of their own steps, read without asking the service: one line a worker and committed step.

A line is a JSON object ``{"job", "attempt", "worker", "lineage", "generation", "step", "pid", "time", "ids"}``.
``time`` is the machine's monotonic clock, the same for all processes; ``step`` is the count of updates
that the model's state has seen, carried in the optimizer's state, so it tells what the state holds,
whoever brought it there; ``ids`` are the samples of the worker's part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One worker's part of one committed step."""

    job: str
    attempt: int
    worker: str
    lineage: int
    generation: int
    step: int
    pid: int
    time: float
    ids: tuple[int, ...]

    @property
    def life(self) -> tuple[int, int]:
        """The lineage within the whole job; a later one is greater."""
        return (self.attempt, self.lineage)


def line_of(note: Note) -> bytes:
    """A note as its line; written at once, it is whole even where its writer is killed."""
    values = {name: getattr(note, name) for name in Note.__slots__}
    return json.dumps(values).encode() + b"\n"


def read_diary(file: Path) -> list[Note]:
    """All whole lines in the order in which they were written; none where nobody has written yet."""
    if not file.exists():
        return []
    data = file.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    return [_parsed(line) for line in whole.splitlines()]


def by_job(notes: Iterable[Note]) -> dict[str, list[Note]]:
    """Notes of each job, in their order."""
    found: dict[str, list[Note]] = {}
    for note in notes:
        found.setdefault(note.job, []).append(note)
    return found


def _parsed(line: bytes) -> Note:
    values = json.loads(line)
    return Note(**{**values, "ids": tuple(values["ids"])})
