"""Who reads micro-batches ahead, beside the training thread: a thread of this process, or processes.

torch's DataLoader is not used: its order of batches is fixed when it begins, while here a plan may change what is
wanted next at any boundary; it waits without letting go when a group is given up; it needs shared memory; and of a
loader that hangs it tells no sample. concurrent.futures serves for threads and answers. Its pool of processes does
not: one that is killed breaks all of it, none can be killed that hangs, and each imports the worker's main module.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from workers.task import Batch
from workers.training import wire
from workers.training.loader_process import LoaderProcess, group_of
from workers.training.pinned import pinned
from workers.training.place import NOWHERE, told_place
from workers.training.reading import Reader, Wanted


class Loaders(Protocol):
    """Read what they are given, in that order; all methods return at once."""

    def read(self, wanted: Wanted) -> Future[Batch]:
        """Have a micro-batch read; one that is cancelled before its turn is not."""
        ...

    def place(self, wanted: Wanted) -> str:
        """The sample that is being read for it, or that it waits for; nothing where there is none. Any thread."""
        ...

    def end(self) -> None:
        """Read nothing more, and leave nothing behind but a thread that hangs in the user's code."""
        ...


class ReadingThread:
    """One thread, as datasets may not bear two: they seek in a file and read, or count what they gave."""

    def __init__(self, reader: Reader, *, is_pinning: bool) -> None:
        self._reader = reader
        self._finished = pinned if is_pinning else _as_it_is
        self._pool = ThreadPoolExecutor(1, "reading")

    def read(self, wanted: Wanted) -> Future[Batch]:
        """See ``Loaders``."""
        return self._pool.submit(self._read, wanted)

    def place(self, wanted: Wanted) -> str:
        """See ``Loaders``; the one place of all reading in this process is told already."""
        return ""

    def end(self) -> None:
        """See ``Loaders``."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, wanted: Wanted) -> Batch:
        return self._finished(self._reader.read_unseeded(wanted))


class LoaderProcesses:
    """So many processes with a copy of the dataset each, and a thread here for each that speaks with it.

    ``limit_bytes`` bounds the writable memory of each.
    """

    def __init__(self, task: wire.Packed, num: int, name: str, *, limit_bytes: int | None, is_pinning: bool) -> None:
        self._name, self.num = name, num
        self._finished = pinned if is_pinning else _as_it_is
        self._group, processes = group_of(num, limit_bytes)
        self._lock = threading.Lock()
        self._idle: list[LoaderProcess] = []
        self._busy: dict[LoaderProcess, Wanted] = {}  # two where one was dropped while it read, and asked for anew
        self._pool = ThreadPoolExecutor(num, "loader")
        self._started = [self._pool.submit(self._start, process, task) for process in processes]

    @property
    def is_ready(self) -> bool:
        """Whether all of them can read by now. Raises LoaderStartError, LoaderGoneError, OSError."""
        return all(started.done() and started.result() is None for started in self._started)

    def read(self, wanted: Wanted) -> Future[Batch]:
        """See ``Loaders``. The answer may be LoaderGoneError or LoaderMemoryError."""
        return self._pool.submit(self._read, wanted)

    def place(self, wanted: Wanted) -> str:
        """See ``Loaders``."""
        with self._lock:
            own = [process for process, read in self._busy.items() if read == wanted]
            processes = own or list(self._busy)
        told = (told_place(self._name, process.index) for process in processes if process.index != NOWHERE)
        return next(told, "")

    def end(self) -> None:
        """See ``Loaders``."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._group.end()

    def _start(self, process: LoaderProcess, task: wire.Packed) -> None:
        process.begin(task)
        with self._lock:
            self._idle.append(process)

    def _read(self, wanted: Wanted) -> Batch:
        with self._lock:
            process = self._idle.pop()
            self._busy[process] = wanted
        try:
            return self._finished(process.read(wanted))
        finally:
            with self._lock:
                del self._busy[process]
                self._idle.append(process)


def _as_it_is(batch: Batch) -> Batch:
    return batch
