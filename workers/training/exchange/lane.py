"""Where gradients are encoded, sent and decoded: on CUDA a stream of its own, beside the one that computes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
