"""What workers noted of their own steps and checkpoints, read without asking the service: one line for each.

A line is a JSON object ``{"job", "attempt", "worker", "lineage", "generation", "step", "pid", "time", "ids"}``.
``time`` is the machine's monotonic clock, the same for all processes; ``step`` is the count of updates
that the model's state has seen, carried in the optimizer's state, so it tells what the state holds,
whoever brought it there; ``ids`` are the samples of the worker's part. The line of a checkpoint that counts
from then on is ``{"job", "attempt", "lineage", "generation", "saved", "time"}``, ``saved`` its step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint of step ``saved`` that was whole by then."""

    job: str
    attempt: int
    lineage: int
    generation: int
    saved: int
    time: float

    @property
    def life(self) -> tuple[int, int]:
        """As of a note."""
        return (self.attempt, self.lineage)


def line_of(note: Note | Saved) -> bytes:
    """A note as its line; written at once, it is whole even where its writer is killed."""
    values = {name: getattr(note, name) for name in note.__slots__}
    return json.dumps(values).encode() + b"\n"


def read_diary(file: Path) -> list[Note]:
    """All steps in the order in which they were written; none where nobody has written yet."""
    return [_note(values) for values in _lines(file) if "saved" not in values]


def read_saves(file: Path) -> list[Saved]:
    """Likewise, of the checkpoints."""
    return [Saved(**values) for values in _lines(file) if "saved" in values]


def _lines(file: Path) -> list[dict[str, Any]]:
    """What is whole: the last line may still be written."""
    if not file.exists():
        return []
    data = file.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()]


def by_job(notes: Iterable[Note]) -> dict[str, list[Note]]:
    """Notes of each job, in their order."""
    found: dict[str, list[Note]] = {}
    for note in notes:
        found.setdefault(note.job, []).append(note)
    return found


def _note(values: dict[str, Any]) -> Note:
    return Note(**{**values, "ids": tuple(values["ids"])})
