"""What optimizers wrote down of their own steps, read without asking the system that ran them. Pure but for reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

KEPT_STEPS = 3000
"""More than a minute of two workers' steps: enough for any change, and little to look through often."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Step:
    """One optimizer step of one process.

    ``time_s`` is the machine's monotonic clock, the same for all processes. ``number`` is the count of
    updates that the model's state has seen, carried in the optimizer's state. ``size`` is the process's
    part of the global batch, in samples.
    """

    time_s: float
    pid: int
    number: int
    size: int


class Audit:
    """The audit files of one job, one a process; each look reads only what was added since the last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._offsets: dict[Path, int] = {}
        self._steps: list[Step] = []

    def steps(self) -> list[Step]:
        """The latest steps so far, in order of time. A line that is still being written is left for the next look."""
        for file in self.folder.glob("*.steps"):
            with file.open("rb") as stream:
                stream.seek(self._offsets.get(file, 0))
                data = stream.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[file] = self._offsets.get(file, 0) + len(whole)
            self._steps += [_parse(line) for line in whole.decode().splitlines()]
        self._steps.sort()
        del self._steps[:-KEPT_STEPS]
        return self._steps


def _parse(line: str) -> Step:
    time_s, pid, number, size = line.split()
    return Step(time_s=float(time_s), pid=int(pid), number=int(number), size=int(size))


def members(steps: Sequence[Step], now_s: float, recent_s: float) -> dict[int, int]:
    """Who has stepped in the last ``recent_s``: process id to its part of the batch, by its latest step."""
    return {step.pid: step.size for step in steps if step.time_s > now_s - recent_s}


def first_after_change(steps: Sequence[Step], at_s: float, before: Mapping[int, int]) -> Step | None:
    """The first step after ``at_s`` that the group of ``before`` did not take: by another process or with another part.

    A step of the old group that was already under way when it changed does not count.
    """
    return next((step for step in steps if step.time_s > at_s and before.get(step.pid) != step.size), None)


def steps_lost(steps: Sequence[Step], first: Step) -> int:
    """How many steps that some process had taken before ``first`` the state behind ``first`` did not hold."""
    highest = max((step.number for step in steps if step.time_s < first.time_s), default=0)
    return highest - (first.number - 1)


def longest_gap_s(steps: Sequence[Step], since_s: float, until: Step) -> float:
    """The longest time between two steps in a row, by anyone, from the last before ``since_s`` to ``until``."""
    before_s = max(step.time_s for step in steps if step.time_s <= since_s)
    times = [before_s, *(step.time_s for step in steps if since_s < step.time_s <= until.time_s)]
    return max(later - earlier for earlier, later in pairwise(times))
