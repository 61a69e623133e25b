"""What a worker notes on its node before a forward pass larger than any that it came through: if it is killed, where.

The kernel kills where memory runs out, without a word, and sooner than a poll could tell: the next worker on the node
finds the note. Size by size there are two writes, and none once the size is settled.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from workers.assignment import Assignment
from workers.measures import LastPass

SUFFIX = ".pass"
CRASHED = b"Fatal Python error: "
CRASH_BYTES = 64 * 2**10
"""At the end of a log: a hundred frames and the names of all extension modules may follow on those words."""


class PassNote:
    """The note of one worker, in ``file``, whose folder need not be there yet."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.passed = 0

    @contextmanager
    def trying(self, size: int) -> Iterator[None]:
        """Around a forward and backward pass of ``size`` samples; an error leaves no trace, as the worker lives on."""
        if size <= self.passed:
            yield
            return
        self._write(size)
        try:
            yield
        except BaseException:
            self._write(self.passed)
            raise
        self.passed = size
        self._write(size)

    def _write(self, size: int) -> None:
        part = self._file.with_suffix(f"{SUFFIX}.part")
        with suppress(OSError):  # a full disk is no reason not to train
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(f"{size} {self.passed}")
            os.replace(part, self._file)


def own(assignment: Assignment) -> PassNote:
    """The note of the worker that this assigns."""
    return PassNote(Path(assignment.log_file).with_suffix(SUFFIX))


def others(assignment: Assignment) -> Mapping[str, LastPass]:
    """What other workers of the attempt noted on this node, by id: those that are gone, and those that train.

    For one that crashed, which is no lack of memory, that is what it came through.
    """
    found = {}
    for file in Path(assignment.log_file).parent.glob(f"*{SUFFIX}"):
        with suppress(OSError, ValueError):
            size, passed = (int(number) for number in file.read_text().split())
            size = passed if _has_crashed(file.with_suffix(".log")) else size
            found[file.stem] = LastPass(size=size, passed=passed)
    found.pop(assignment.worker_id, None)
    return found


def _has_crashed(log: Path) -> bool:
    """Whether a log ends with what faulthandler, which Ray enables, writes where a process crashes."""
    with log.open("rb") as lines:
        lines.seek(max(0, log.stat().st_size - CRASH_BYTES))
        return CRASHED in lines.read()
