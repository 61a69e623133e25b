"""How long the link was at work for NCCL's collectives, which the host does not see end: the device notes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import torch
import torch.distributed as dist

from workers.training.device_clock import noted

Span: TypeAlias = tuple[torch.cuda.Event, torch.cuda.Event]


class DeviceOccupancy:
    """One world's; for one thread at a time: that which trains, or that which runs its backward pass meanwhile.

    Collectives of a group run one after the other, in a stream of its own.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._watch: torch.cuda.Stream | None = None
        self._spans: list[Span] = []

    def sent(self, work: dist.Work) -> None:
        """A collective was just handed over, behind what the current stream has to do before."""
        if self._watch is None:
            # Of the pool that nobody else here takes from: torch gives streams of a pool out in turns, again and again.
            self._watch = torch.cuda.Stream(self._device, priority=-1)  # type: ignore[no-untyped-call]  # torch's
        ready = noted()
        with torch.cuda.stream(self._watch):
            work.wait()  # of NCCL it is the stream that waits
            self._spans.append((ready, noted()))

    def drop(self) -> None:
        """Forget those so far."""
        self._spans = []

    def take(self) -> list[Span]:
        """When each since the last call had all that it sends, and when it ended, in their order; waits until then."""
        spans, self._spans = self._spans, []
        if spans:
            spans[-1][1].synchronize()
        return spans


def at_work(spans: Iterable[tuple[float, float]], until_s: float) -> tuple[float, float]:
    """Seconds that the link was at work, and those of them before ``until_s``.

    ``spans`` are when each collective could have begun and when it ended; they run one after the other.
    """
    whole_s = before_s = free_s = 0.0
    for ready_s, ended_s in spans:
        begun_s = max(ready_s, free_s)
        whole_s += max(0.0, ended_s - begun_s)
        before_s += max(0.0, min(ended_s, until_s) - begun_s)
        free_s = max(free_s, ended_s)
    return whole_s, before_s
