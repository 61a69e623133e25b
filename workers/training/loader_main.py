"""A loader process: reads micro-batches for the worker that started it, and ends with it.

It is started as a program of its own and never forked: the worker has threads, of torch and of others, whose locks a
fork would copy as they are. It does not import the worker's main module, as ``multiprocessing`` would have it (in a
worker of a cluster that is all of Ray).
"""

from __future__ import annotations

import mmap
import os
import resource
import select
import socket
import struct
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from workers.errors import JobError, described
from workers.task import Batch, MapDataset
from workers.training import memory, wire
from workers.training.batching import Batcher, Turnstile
from workers.training.place import NOWHERE, Place
from workers.training.reading import Reader, Wanted

INDEX = struct.Struct("<q")
"""What a loader leaves in the memory that it shares with its worker: the index of the sample that it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a loader reads for as long as it lives."""

    dataset: MapDataset
    collate: Callable[[Sequence[Any]], Batch] | None
    name: str
    has_rows: bool
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """Why there is no batch: ``message`` is told as it is, ``traceback`` is the loader's."""

    message: str
    traceback: str
    is_of_memory: bool


class SharedPlace(Place):
    """A place that the worker sees, too."""

    def __init__(self, view: mmap.mmap) -> None:
        super().__init__()
        self._view = view
        self.note(NOWHERE)

    def note(self, index: int) -> None:
        """The sample at this index comes next."""
        INDEX.pack_into(self._view, 0, index)


def serve(socket_fd: int, place_fd: int, limit_bytes: int | None) -> None:
    """Answer the worker's wishes until it is gone; the two descriptors are inherited from it.

    ``limit_bytes`` bounds the writable memory of this process, None does not.
    """
    if limit_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard))
    sock = socket.socket(fileno=socket_fd)
    threading.Thread(target=_end_with_worker, args=(socket_fd,), name="end", daemon=True).start()
    torch.set_num_threads(1)
    turnstile = Turnstile()
    turnstile.place = place = SharedPlace(mmap.mmap(place_fd, INDEX.size))
    try:
        reader = _begin(wire.receive(sock), turnstile)
    except EOFError:
        return
    except Exception as error:  # the user's classes may raise anything where they are unpickled
        wire.send(sock, wire.pack(_unread(error)))
        return
    wire.send(sock, wire.pack(None))
    while True:
        try:
            wanted = wire.receive(sock)
        except EOFError:
            return
        wire.send(sock, _answer(reader, wanted))
        place.note(NOWHERE)


def _begin(task: Task, turnstile: Turnstile) -> Reader:
    cpu = torch.device("cpu")
    batcher = Batcher(task.dataset, task.collate, cpu, task.name, has_rows=task.has_rows, turnstile=turnstile)
    return Reader(batcher, task.seed)


def _answer(reader: Reader, wanted: Wanted) -> wire.Packed:
    try:
        return wire.pack(reader.read(wanted))
    except (Exception, SystemExit) as error:  # whatever the user's code raises, and batches that cannot be pickled
        return wire.pack(_unread(error))


def _unread(error: BaseException) -> Unread:
    return Unread(
        message=error.message if isinstance(error, JobError) else described(error),
        traceback="".join(traceback.format_exception(error.__cause__ or error)),
        is_of_memory=memory.is_out_of_memory(error),
    )


def _end_with_worker(socket_fd: int) -> None:
    """End this process when the worker's end of the socket closes, also while the user's code hangs."""
    poll = select.poll()
    poll.register(socket_fd, 0)  # a hang-up is told in any case
    while not any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll()):
        pass
    os._exit(0)
