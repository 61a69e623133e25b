"""Batches on their way to a CUDA device while it computes: from pinned memory, on a stream of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from workers.task import Batch
from workers.training.batching import to_device, with_leaves


def pinned(batch: Batch) -> Batch:
    """The batch with its tensors in page-locked memory, from which a device copies by itself; any thread."""

    def pin(value: Any) -> Any:
        return value.pin_memory() if _is_strided(value) and value.device.type == "cpu" else value

    return with_leaves(batch, pin)


def can_be_copied_ahead(batch: Batch) -> bool:
    """Whether all in it that is to be moved are tensors whose memory can be kept from another stream.

    Sparse and nested ones cannot be, nor what moves itself, such as a graph: nobody knows the tensors within.
    """
    leaves: list[Any] = []
    with_leaves(batch, leaves.append)
    return all(_is_strided(leaf) or not hasattr(leaf, "to") for leaf in leaves)


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested


@dataclass(frozen=True, slots=True)
class Copy:
    """``batch`` is whole on the device once ``done`` has happened there."""

    batch: Batch
    done: torch.Event


class Copies:
    """Copies to one CUDA device; for the training thread alone."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's

    def begin(self, batch: Batch) -> Copy:
        """Have a pinned batch that ``can_be_copied_ahead`` copied beside what the device computes."""
        with torch.cuda.stream(self._stream):
            copied = to_device(batch, self._device)
        return Copy(copied, self._stream.record_event())

    def finish(self, copy: Copy) -> Batch:
        """The batch, for what is given to the device from here on by this thread."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(copy.done)

        def keep(value: Any) -> Any:
            # Its memory belongs to the other stream, which must not have it back while this one still reads.
            if isinstance(value, torch.Tensor) and value.is_cuda:
                value.record_stream(current)
            return value

        return with_leaves(copy.batch, keep)
