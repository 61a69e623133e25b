"""A worker's log: its output goes to a file on the node, and is read from there in pieces. Loads no torch."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from workers.errors import Failure
from workers.secrets import Secrets
from workers.status import LogChunk
from workers.training.holes import punch_hole

MAX_LINE_BYTES = 64 * 2**10
KEPT_BYTES = 16 * 2**20
"""Before what a controller has; more than it holds without the store having it, should it die."""

LEAST_FREED_BYTES = 16 * 2**20

_replaced: list[TextIO] = []  # kept, as collecting an old stream would close the descriptor that the new one uses


class _LossyFile(io.FileIO):
    """Whoever prints goes on where nothing can be written: a full disk must cost lines, not what they tell of."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


class _Text(io.TextIOWrapper):
    mode = "w"  # as `open` gives


def redirect_output(path: Path) -> None:
    """Send this process's standard output and error, its children's included, to the end of ``path``.

    Works on file descriptors 1 and 2, so what C libraries print is caught too. Lines are written as
    they end; what cannot be encoded is escaped, and what cannot be written, as to a full disk, is lost. The file is
    readable by the owner only.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
    finally:
        os.close(log)
    _replaced.extend((sys.stdout, sys.stderr))
    # New text streams rather than the old ones: those may write to other descriptors than 1 and 2.
    sys.stdout, sys.stderr = _lossy(1), _lossy(2)


def _lossy(descriptor: int) -> TextIO:
    raw = io.BufferedWriter(_LossyFile(descriptor, "w", closefd=False))
    return _Text(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def log_failure(failure: Failure) -> None:
    """Write its traceback, which is bounded: whole, one of megabytes would travel to the service with every attempt."""
    print(failure.traceback, file=sys.stderr, end="", flush=True)


class LogReader:
    """Reads a log file that another stream of this process writes. May be called from any thread."""

    def __init__(self, path: Path, secrets: Secrets | None = None) -> None:
        self.path = path
        self._secrets = secrets or Secrets()
        self._freed_to = 0

    def size(self) -> int:
        """Bytes written so far."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def line_after(self, offset: int) -> int:
        """Where the first line begins after ``offset``, within ``MAX_LINE_BYTES``; never within a secret's value."""
        before = min(offset, self._secrets.max_bytes)
        with self.path.open("rb") as file:
            file.seek(offset - before)
            data = self._secrets.data(file.read(before + MAX_LINE_BYTES))
        return offset - before + (data.find(b"\n", before) + 1 or len(data))

    def free(self, begin: int, end: int) -> None:
        """Give the disk back what these bytes took; they read as zeros then, and the others stay where they are."""
        if end - begin < LEAST_FREED_BYTES:
            return
        with self.path.open("r+b") as file:
            punch_hole(file.fileno(), begin, end)

    def free_delivered(self, offset: int) -> None:
        """Free what lies far enough before ``offset`` that nobody asks for it again; now and then is enough."""
        end = offset - KEPT_BYTES
        if end - self._freed_to >= LEAST_FREED_BYTES:
            self.free(self._freed_to, end)
            self._freed_to = end

    def chunks(self, after_offset: int, rank: int | None, worker_id: str, max_bytes: int) -> tuple[LogChunk, ...]:
        """What was written from byte ``after_offset`` on: at most ``max_bytes``, as one chunk or none.

        A chunk that does not reach the end of the file ends with a whole line where it holds one,
        and never within a UTF-8 character. ``time`` is when the file was last written to. Values of
        secrets are blotted out; one that is half written waits for the rest of it.
        """
        try:
            with self.path.open("rb") as file:
                written_at = os.fstat(file.fileno()).st_mtime
                file.seek(after_offset)
                data = file.read(max_bytes + 1)
        except FileNotFoundError:
            return ()
        if len(data) > max_bytes:
            data = data[: _cut(data, max_bytes)]
        data = self._secrets.piece(data)
        if not data:
            return ()
        return (LogChunk(worker_id=worker_id, offset=after_offset, rank=rank, time=written_at, data=data),)


def _cut(data: bytes, max_bytes: int) -> int:
    """Where to end a piece of at most ``max_bytes``: after a line, else between characters."""
    if newline := data.rfind(b"\n", 0, max_bytes) + 1:
        return newline
    end = max_bytes
    while end > max(0, max_bytes - 3) and data[end] & 0xC0 == 0x80:
        end -= 1
    return end or max_bytes
