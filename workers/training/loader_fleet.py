"""The loaders of one worker: started when they are wanted, within its memory, and ended when they are not."""

from __future__ import annotations

import sys

import torch

from workers.errors import described
from workers.training import footprint, memory, wire
from workers.training.loader_choice import Way
from workers.training.loader_main import LOADED_BYTES, Task
from workers.training.loader_process import LoaderGoneError, LoaderStartError
from workers.training.loaders import LoaderProcesses, Loaders, ReadingThread
from workers.training.reading import Reader

PROCESS_BYTES = LOADED_BYTES + 64 * 2**20
"""What a loader holds besides the dataset and batches."""

MAX_DATASET_BYTES = 2 * 2**30
_NUM_BATCHES = 4
_CPU = torch.device("cpu")


class NoLoadersError(Exception):
    """``way`` cannot read; the message tells why."""

    def __init__(self, way: Way, reason: str) -> None:
        super().__init__(reason)
        self.way = way


class Fleet:
    """At most a thread and one group of processes; with ``is_pinning`` batches come in page-locked memory."""

    def __init__(self, reader: Reader, *, is_pinning: bool) -> None:
        self._reader, self._is_pinning = reader, is_pinning
        self._thread: ReadingThread | None = None
        self._processes: LoaderProcesses | None = None
        self._are_ready = False
        self._set_aside_bytes = 0

    def of(self, way: Way) -> Loaders | None:
        """Who reads in this way, if they are there and can read by now. Any thread."""
        if way.has_thread:
            return self._thread
        return self._processes if way.num_processes and self._are_ready else None

    def keep(self, *ways: Way, batch_bytes: int = 0) -> int:
        """Start those that are among ``ways`` and end all others; how many processes there are then.

        Raises NoLoadersError.
        """
        if not any(way.has_thread for way in ways):
            self._end_thread()
        elif self._thread is None:
            self._thread = ReadingThread(self._reader, is_pinning=self._is_pinning)
        wanted = next((way for way in ways if way.num_processes), None)
        if wanted is None:
            self.end_processes()
            return 0
        try:
            if self._processes is None:
                self._processes = self._start(wanted, batch_bytes)
            self._are_ready = self._are_ready or self._processes.is_ready
        except (LoaderStartError, LoaderGoneError, OSError) as error:
            self.end_processes()
            raise NoLoadersError(wanted, f"a loader process could not be started: {error}") from error
        return self._processes.num

    def end_processes(self) -> None:
        """End them; where they are wanted they are started anew."""
        if self._processes is not None:
            self._processes.end()
            self._processes, self._are_ready = None, False
        if self._set_aside_bytes:
            memory.set_aside(-self._set_aside_bytes)
            self._set_aside_bytes = 0

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._thread.end()
            self._thread = None

    def _start(self, way: Way, batch_bytes: int) -> LoaderProcesses:
        batcher = self._reader.batcher
        task = self._packed(way)
        each_bytes = PROCESS_BYTES + 2 * task.num_bytes + _NUM_BATCHES * batch_bytes
        num = min(way.num_processes, self._num_that_fit(each_bytes))
        if num == 0:
            raise NoLoadersError(
                way, f"a loader process would take {each_bytes >> 20} MiB, and this worker's memory has no room for it"
            )
        is_limited = memory.set_aside(num * each_bytes)
        self._set_aside_bytes = num * each_bytes if is_limited else 0
        told = f"starting {num} loader process{'es' if num > 1 else ''} for {batcher.name}"
        print(told, file=sys.stderr, flush=True)
        limit_bytes = each_bytes if is_limited else None
        return LoaderProcesses(task, num, batcher.name, limit_bytes=limit_bytes, is_pinning=self._is_pinning)

    def _packed(self, way: Way) -> wire.Packed:
        batcher = self._reader.batcher
        task = Task(
            dataset=batcher.dataset,
            collate=batcher.own_collate,
            name=batcher.name,
            has_rows=batcher.has_rows,
            seed=self._reader.seed_of_job,
        )
        try:
            with batcher.turnstile.lock:
                return wire.pack(task, MAX_DATASET_BYTES)
        except wire.TooLargeError as error:
            raise NoLoadersError(way, f"{batcher.name} is too large to be copied to processes: {error}") from error
        except Exception as error:  # the user's classes may raise anything where they are pickled
            told = f"{batcher.name} or collate cannot be pickled for a process ({described(error)})"
            raise NoLoadersError(way, told) from error

    @staticmethod
    def _num_that_fit(each_bytes: int) -> int:
        room = footprint.room(_CPU)
        if room.limit_bytes is None:
            return sys.maxsize
        return max(0, room.limit_bytes - footprint.held(_CPU)) // (2 * each_bytes)
