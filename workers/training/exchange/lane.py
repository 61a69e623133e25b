"""Where gradients are encoded, sent and decoded beside what computes them: on CUDA a stream, on a CPU a thread."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

import torch

PARALLEL_VALUES = 2**15
"""Of an operation for each of torch's threads, so that it uses all of them."""


class Lane:
    """Of one device; where that has no streams, or there is none, what is done ``within`` is done in its turn."""

    def __init__(self, device: torch.device | None = None) -> None:
        is_cuda = device is not None and device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if is_cuda else None  # type: ignore[no-untyped-call]  # torch's

    @contextmanager
    def within(self) -> Iterator[None]:
        """What is done inside begins once all is done that this thread has given the device so far."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """What this thread gives the device from now on begins once all is done that was given within."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


class Side:
    """A thread beside the one that computes: what it is given it does in that order, up to an error."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="exchange")
        self._last: Future[None] | None = None
        self._error: BaseException | None = None
        self._thread.submit(_begin).result()

    def give(self, work: Callable[[], None]) -> None:
        """Have this done once all is done that was given before, unless ``join`` has an error to raise of that."""
        self._last = self._thread.submit(self._do, work)

    def join(self) -> None:
        """Wait until all is done; what waits for other ranks of it, until their world is aborted. Raises the error."""
        self._wait()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None

    def drop(self) -> None:
        """Wait likewise, for what nobody asks after any more."""
        self._wait()
        self._error = None

    def close(self) -> None:
        """Let the thread end once all is done."""
        self._thread.shutdown(wait=False)

    def _wait(self) -> None:
        if self._last is not None:
            self._last.result()
            self._last = None

    def _do(self, work: Callable[[], None]) -> None:
        if self._error is not None:
            return
        try:
            work()
        except BaseException as error:  # raised by join; nothing else may be sent after it
            self._error = error
            _drop_frames(error)


def _begin() -> None:
    """Have OpenMP's threads of this thread while there is memory for them: later, where it lacks, the process ends."""
    torch.zeros(torch.get_num_threads() * PARALLEL_VALUES).add_(1.0)


def _drop_frames(error: BaseException) -> None:
    """Let it tell in words where it was raised, and hold nothing of what was there.

    A broken group that an error kept until the process ends would hang in it: its threads wait for the interpreter
    to tell it of their collectives, and the interpreter for them.
    """
    with suppress(Exception):  # there may be no memory for the words
        error.add_note("".join(traceback.format_exception(error)))
    raised: list[BaseException | None] = [error]
    seen = set[int]()
    while raised:
        one = raised.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            raised += [one.__cause__, one.__context__]
