"""The worker's end of its loader processes: start them, have them read, and see when they are gone."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress

from workers.errors import DataError
from workers.task import Batch
from workers.training import wire
from workers.training.loader_main import INDEX, KILLED, Unread
from workers.training.place import NOWHERE
from workers.training.reading import Wanted

_PROGRAM = (
    "import gc, json, sys; gc.disable(); given = json.loads(sys.argv[1]); sys.path[:] = given['path']; "
    "from workers.training.loader_main import serve_all; serve_all(given['ends'], given['limit_bytes'])"
)
_WAIT_S = 5.0


class LoaderGoneError(Exception):
    """Loader processes have ended by themselves, or were killed."""


class LoaderMemoryError(Exception):
    """Memory ran out in a loader process."""


class LoaderStartError(Exception):
    """A loader process cannot be given the dataset."""


class RemoteTraceback(Exception):
    """Stands for the error that a loader process saw; its text is the traceback there."""


class Line:
    """To one loader process: its socket, and the memory in which it tells the index of the sample that it reads."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.file = tempfile.TemporaryFile()  # noqa: SIM115  # until it is handed over
        self.file.write(INDEX.pack(NOWHERE))
        self.file.flush()
        self.place = mmap.mmap(self.file.fileno(), INDEX.size)

    def handed_over(self) -> None:
        """The process has its ends by now."""
        self.theirs.close()
        self.file.close()


class LoaderGroup:
    """``num`` loader processes; where one of them goes, all of them do. ``limit_bytes`` bounds the memory of each."""

    def __init__(self, num: int, limit_bytes: int | None) -> None:
        self.lines = [Line() for _ in range(num)]
        ends = [(line.theirs.fileno(), line.file.fileno()) for line in self.lines]
        given = {"path": [str(path) for path in sys.path], "ends": ends, "limit_bytes": limit_bytes}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps(given)],
                pass_fds=[fd for pair in ends for fd in pair],
                env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
                stdin=subprocess.DEVNULL,
            )
        finally:
            for line in self.lines:
                line.handed_over()

    def end(self) -> None:
        """Kill them; whoever waits for one gets LoaderGoneError."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # where the kernel holds it, in a file that is away, say
            self._process.wait(_WAIT_S)
        for line in self.lines:
            line.ours.close()

    def why_gone(self) -> str:
        """How they ended, waited for a moment."""
        try:
            code = self._process.wait(_WAIT_S)
        except subprocess.TimeoutExpired:
            return "it no longer answers"
        number = code - KILLED if code > KILLED else -code
        name = next((known.name for known in signal.Signals if known == number), None)
        # The user's code may exit with any code; a real-time signal has no name.
        return f"it ended with code {code}" if name is None else f"it was killed by signal {number} ({name})"


class LoaderProcess:
    """One of a group, for one thread at a time; ``index`` is for any."""

    def __init__(self, group: LoaderGroup, line: Line) -> None:
        self._group, self._line = group, line

    def begin(self, task: wire.Packed) -> None:
        """Give it its task. Raises LoaderGoneError, LoaderStartError where it cannot make the dataset there."""
        answer = self._asked(task)
        if isinstance(answer, Unread):
            raise LoaderStartError(answer.message)

    def read(self, wanted: Wanted) -> Batch:
        """Have a micro-batch read.

        Raises DataError as reading it in this process would, LoaderMemoryError, LoaderGoneError.
        """
        answer = self._asked(wire.pack(wanted))
        if not isinstance(answer, Unread):
            return answer
        if answer.is_of_memory:
            raise LoaderMemoryError(answer.message)
        raise DataError(answer.message) from RemoteTraceback(f"in a loader process:\n{answer.traceback}")

    @property
    def index(self) -> int:
        """The index of the sample that it reads, ``NOWHERE`` while it reads none."""
        found: int = INDEX.unpack_from(self._line.place, 0)[0]
        return found

    def _asked(self, packed: wire.Packed) -> object:
        try:
            wire.send(self._line.ours, packed)
            return wire.receive(self._line.ours)
        except (EOFError, OSError) as error:
            raise LoaderGoneError(self._group.why_gone()) from error


def group_of(num: int, limit_bytes: int | None) -> tuple[LoaderGroup, Sequence[LoaderProcess]]:
    """Start so many loader processes."""
    group = LoaderGroup(num, limit_bytes)
    return group, [LoaderProcess(group, line) for line in group.lines]
