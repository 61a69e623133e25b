"""The worker's end of a loader process: start it, have it read, and see when it is gone."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile

from workers.errors import DataError
from workers.task import Batch
from workers.training import wire
from workers.training.loader_main import INDEX, Unread
from workers.training.place import NOWHERE
from workers.training.reading import Wanted

_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from workers.training.loader_main import serve; "
_WAIT_S = 5.0


class LoaderGoneError(Exception):
    """A loader process has ended by itself, or was killed."""


class LoaderMemoryError(Exception):
    """Memory ran out in a loader process."""


class LoaderStartError(Exception):
    """A loader process cannot be given the dataset."""


class RemoteTraceback(Exception):
    """Stands for the error that a loader process saw; its text is the traceback there."""


class LoaderProcess:
    """One process with a copy of the dataset; one thread at a time may call ``start`` and ``read``, any the others."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._place: mmap.mmap | None = None
        self._is_ended = False

    def start(self, task: wire.Packed, limit_bytes: int | None) -> None:
        """Start the process and give it its task; ``limit_bytes`` bounds its memory.

        Raises LoaderGoneError, LoaderStartError where it cannot make the dataset there.
        """
        ours, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as file:
            file.write(INDEX.pack(NOWHERE))
            file.flush()
            self._place = mmap.mmap(file.fileno(), INDEX.size)
            self._socket = ours
            fds = (theirs.fileno(), file.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"{_PROGRAM}serve({fds[0]}, {fds[1]}, {limit_bytes})", json.dumps(sys.path)],
                pass_fds=fds,
                env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
                stdin=subprocess.DEVNULL,
            )
        if self._is_ended:  # while it was being started
            self.end()
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
        if self._place is None:
            return NOWHERE
        found: int = INDEX.unpack_from(self._place, 0)[0]
        return found

    @property
    def process_id(self) -> int | None:
        """None before it was started."""
        return None if self._process is None else self._process.pid

    def end(self) -> None:
        """Kill it; whoever waits for it gets LoaderGoneError."""
        self._is_ended = True
        if self._process is not None:
            self._process.kill()
            self._process.wait(_WAIT_S)
        if self._socket is not None:
            self._socket.close()

    def _asked(self, packed: wire.Packed) -> object:
        assert self._socket is not None
        try:
            wire.send(self._socket, packed)
            return wire.receive(self._socket)
        except (EOFError, OSError) as error:
            raise LoaderGoneError(self._why_gone()) from error

    def _why_gone(self) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(_WAIT_S)
        except subprocess.TimeoutExpired:
            return "it no longer answers"
        if code >= 0:
            return f"it ended with code {code}"
        return f"it was killed by signal {-code} ({signal.Signals(-code).name})"
