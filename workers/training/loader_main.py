"""Loader processes: read micro-batches for the worker that started them, and end with it.

They begin as one program of its own: the worker has threads, of torch and of others, whose locks a fork would copy as
they are. It does not import the worker's main module, as ``multiprocessing`` would have it (in a worker of a cluster
that is all of Ray). That program, which has no threads, loads torch once and forks the loaders, before it has seen
anything of the user's code.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import resource
import select
import signal
import socket
import struct
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from workers.errors import JobError, described
from workers.task import Batch, MapDataset
from workers.training import footprint, memory, wire
from workers.training.batching import Batcher, Turnstile
from workers.training.place import NOWHERE, Place
from workers.training.reading import Reader, Wanted

INDEX = struct.Struct("<q")
"""What a loader leaves in the memory that it shares with its worker: the index of the sample that it reads."""

KILLED = 128
"""Added to the number of the signal that killed a loader it is the code with which all of them end."""

LOADED_BYTES = 192 * 2**20
"""Of writable memory that Python, torch and numpy come to, where torch is built for CPUs; for CUDA it is far more."""

_PR_SET_PDEATHSIG = 1  # prctl(2)


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


def serve_all(ends: Sequence[tuple[int, int]], limit_bytes: int | None) -> None:
    """Be so many loaders as there are ``ends``: of each a socket and a file for its place, inherited from the worker.

    ``limit_bytes`` bounds the writable memory of each, None does not. It ends when the first of them does.
    The garbage collector, which was off while torch was loaded, is on in each.
    """
    gc.freeze()  # to look through all of torch writes to it, which is 45 MiB of a loader's own for what it shares
    gc.enable()
    for own in ends:
        if os.fork() == 0:
            for fd in (fd for pair in ends if pair != own for fd in pair):
                with suppress(OSError):  # of those before it, it has none
                    os.close(fd)
            _end_with_parent()
            serve(*own, limit_bytes)
            os._exit(0)
        for fd in own:
            os.close(fd)
    _, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    os._exit(KILLED - code if code < 0 else code)


def _end_with_parent() -> None:
    """Let the kernel kill this process when the one that forked it is gone, also where the user's code hangs."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(socket_fd: int, place_fd: int, limit_bytes: int | None) -> None:
    """Answer the worker's wishes until it is gone.

    Where torch brought more than ``LOADED_BYTES`` that comes on top of the limit: loaders share it, as they are forked.
    """
    if limit_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        shared_bytes = max(0, (footprint.data_bytes() or 0) - LOADED_BYTES)
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes + shared_bytes, hard))
    sock = socket.socket(fileno=socket_fd)
    threading.Thread(target=_end_with_worker, args=(socket_fd,), name="end", daemon=True).start()
    torch.set_num_threads(1)
    turnstile = Turnstile()
    turnstile.place = place = SharedPlace(mmap.mmap(place_fd, INDEX.size))
    try:
        reader = _begin(wire.receive(sock), turnstile)
    except (EOFError, OSError):
        return
    except Exception as error:  # the user's classes may raise anything where they are unpickled
        wire.send(sock, wire.pack(_unread(error)))
        return
    wire.send(sock, wire.pack(None))
    while True:
        try:
            wire.send(sock, _answer(reader, wire.receive(sock)))
        except (EOFError, OSError):  # the worker is gone
            return
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
    """End this process when the worker's end of the socket closes, also while it reads."""
    poll = select.poll()
    poll.register(socket_fd, 0)  # a hang-up is told in any case
    while not any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll()):
        pass
    os._exit(0)
